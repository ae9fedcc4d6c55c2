//! Mock workers inside the process, which go wrong as the episode's schedule says.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{Stream, StreamExt};
use penstock_engine::{
    ProgressSink, Workers, WorkersEnd, WorkersError,
    generated::v1::{
        self,
        shard_server::{Shard, ShardServer},
    },
    shard::{LoadConfig, Loaded, ShardGroup, Transport},
};
use penstock_mock_shard::{Exit, MockConfig, Service};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming, body::Body, codegen::http};
use tower::{Service as _, service_fn};

use crate::clients::Fate;
use crate::faults::{Fault, Weather};
use crate::random::{Random, hash};

type Answers = mpsc::UnboundedSender<Result<v1::StepReply, Status>>;

impl Worker {
    /// Answers the steps of a stream until the worker dies.
    async fn answer(self, replies: <Service as Shard>::StepStream, answers: Answers) {
        tokio::select! {
            biased;
            () = died(&self.exit) => {}
            () = self.answer_in_time(replies, &answers) => return,
        }
        // The engine may have dropped the stream.
        let _ = answers.send(Err(Status::unavailable("the worker was killed")));
    }

    async fn answer_in_time(&self, mut replies: <Service as Shard>::StepStream, answers: &Answers) {
        while let Some(reply) = replies.next().await {
            sleep(self.world.within(1, self.world.setup.step)).await;
            let faults = match &reply {
                Ok(_) if !answers.is_closed() => self.world.on_reply(self.rank),
                Ok(_) => None,
                Err(status) => {
                    if status.code() != tonic::Code::Internal {
                        self.world.violated(status);
                    }
                    None
                }
            };
            for reply in self.go_wrong(reply, faults).await {
                // The engine may have dropped the stream.
                let _ = answers.send(reply);
            }
        }
    }

    /// Returns what the worker answers.
    async fn go_wrong(
        &self,
        reply: Result<v1::StepReply, Status>,
        fault: Option<Fault>,
    ) -> Vec<Result<v1::StepReply, Status>> {
        let (Ok(mut own), Some(fault)) = (reply.clone(), fault) else {
            if let Ok(reply) = &reply {
                self.world.state().answers[0] = Some(reply.clone());
            }
            return vec![reply];
        };
        match fault {
            Fault::DiesBeforeReply | Fault::KilledBeforeReply => {
                self.exit.send_replace(Exit::Crashed);
                return Vec::new();
            }
            Fault::DiesAfterReply => {
                self.exit.send_replace(Exit::Crashed);
            }
            Fault::Hangs => std::future::pending().await,
            Fault::Stalls => sleep(self.world.within(100, 1_500)).await,
            Fault::Oversleeps => {
                self.world.state().survive = true;
                sleep(OVERSLEPT).await;
            }
            Fault::AnswersOldStep => {
                let old = self.world.state().answers[1].clone();
                own.epoch -= 1;
                return vec![Ok(old.unwrap_or(own)), reply];
            }
            Fault::AnswersTwice => return vec![reply.clone(), reply],
            Fault::AlienToken => own.token_ids.iter_mut().for_each(|id| *id = u32::MAX),
            Fault::Malformed => own.counts.push(1),
            Fault::StepFails => return vec![Err(Status::internal("the step failed on purpose"))],
            Fault::Panic | Fault::KilledAnytime => {}
        }
        vec![Ok(own)]
    }
}
