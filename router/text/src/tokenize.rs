//! The bounded thread pool that renders templates and tokenizes prompts.

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokenizers::Tokenizer;
use tokio::sync::oneshot;

use penstock_request::error::{ApiError, ErrorKind};

/// A thread pool for slow work that must not delay streams. Jobs queue by size class, so that large
/// jobs cannot delay small ones. Cheap to clone; the threads end with the last clone.
#[derive(Clone, Debug)]
pub struct TokenizerPool {
    size_classes: [SyncSender<Job>; SIZE_CLASSES],
}

const SIZE_CLASSES: usize = 3;
/// Bytes of text from which a job belongs to the second and to the third size class. Byte-level BPE
/// takes about 0.1 s for 256 KiB in an optimised build.
const SIZE_CLASS_BYTES: [usize; SIZE_CLASSES - 1] = [16 << 10, 256 << 10];

type Job = Box<dyn FnOnce() + Send>;

/// Whether special tokens such as BOS are added around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Added by the tokenizer's post-processor.
    Add,
    /// Not added: a chat template has already written them.
    AsIs,
}

/// A token of a text, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPiece {
    /// Vocabulary id.
    pub id: u32,
    /// The characters that it covers; empty for a token that the tokenizer added.
    pub text: String,
    /// Index of its first character.
    pub start: usize,
    /// Index one past its last character.
    pub stop: usize,
}

impl TokenizerPool {
    /// Starts `threads` threads for small jobs, half as many for larger ones and a quarter for the
    /// largest, at least one each. Each size class queues up to `queue` jobs. If no thread can be
    /// started, every job fails.
    pub fn start(threads: NonZeroUsize, queue: usize) -> Self {
        let size_class =
            |index: usize| start_size_class(index, (threads.get() >> index).max(1), queue);
        Self {
            size_classes: std::array::from_fn(size_class),
        }
    }

    /// Runs `work`, whose text has about `size` bytes, on the pool. Skips the job if its caller
    /// disconnects before its turn. Fails if the queue is full or the job panics.
    pub async fn run<T: Send + 'static>(
        &self,
        size: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (reply, result) = oneshot::channel();
        let job = Box::new(move || {
            if !reply.is_closed() {
                // Keep the thread running after a panic; the dropped reply reports it.
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                if let Ok(outcome) = outcome {
                    // The caller may have disconnected.
                    let _ = reply.send(outcome);
                }
            }
        });
        let size_class = SIZE_CLASS_BYTES.partition_point(|from| *from <= size);
        match self.size_classes[size_class].try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let error = ApiError::new(ErrorKind::Overloaded, "Model is overloaded");
                return Err(error.retry(Duration::from_secs(1)));
            }
            Err(TrySendError::Disconnected(_)) => return Err(stopped()),
        }
        result.await.unwrap_or_else(|_| Err(stopped()))
    }
}

fn start_size_class(index: usize, threads: usize, queue: usize) -> SyncSender<Job> {
    let (jobs, inbox) = sync_channel::<Job>(queue);
    let inbox = Arc::new(Mutex::new(inbox));
    for thread in 0..threads {
        let inbox = Arc::clone(&inbox);
        let work = move || {
            while let Some(job) = next_job(&inbox) {
                job();
            }
        };
        let name = format!("tokenizer-{index}-{thread}");
        if let Err(error) = thread::Builder::new().name(name).spawn(work) {
            tracing::error!("cannot start a tokenizer thread: {error}");
        }
    }
    jobs
}

fn next_job(inbox: &Mutex<Receiver<Job>>) -> Option<Job> {
    inbox
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .recv()
        .ok()
}

fn stopped() -> ApiError {
    ApiError::new(ErrorKind::Internal, "the tokenizer failed on this prompt")
}

/// Returns the token ids of `text`.
pub fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    special: SpecialTokens,
) -> Result<Vec<u32>, ApiError> {
    let encoding = tokenizer.encode_fast(text, special == SpecialTokens::Add);
    Ok(encoding
        .map_err(|e| tokenizer_error(&e))?
        .get_ids()
        .to_vec())
}

/// Returns the tokens of `text` with their positions, in characters.
pub fn pieces(
    tokenizer: &Tokenizer,
    text: &str,
    special: SpecialTokens,
) -> Result<Vec<TextPiece>, ApiError> {
    let encoding = tokenizer
        .encode_char_offsets(text, special == SpecialTokens::Add)
        .map_err(|e| tokenizer_error(&e))?;
    let starts: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    let slice = |start: usize, stop: usize| match (starts.get(start), starts.get(stop)) {
        (Some(&from), Some(&to)) if from <= to => text[from..to].to_owned(),
        _ => String::new(),
    };
    let places = encoding.get_ids().iter().zip(encoding.get_offsets());
    Ok(places
        .map(|(&id, &(start, stop))| TextPiece {
            id,
            text: slice(start, stop),
            start,
            stop,
        })
        .collect())
}

fn tokenizer_error(error: &tokenizers::Error) -> ApiError {
    ApiError::new(ErrorKind::Validation, format!("tokenizer error {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize, queue: usize) -> TokenizerPool {
        TokenizerPool::start(NonZeroUsize::new(threads).unwrap(), queue)
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_a_panic_is_contained() {
        let pool = pool(1, 1);
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let (entered, running) = std::sync::mpsc::channel::<()>();
        let block = pool.clone();
        let blocked = tokio::spawn(async move {
            block
                .run(1, move || {
                    entered.send(()).unwrap();
                    gate.recv().unwrap();
                    Ok(1)
                })
                .await
        });
        tokio::task::spawn_blocking(move || running.recv().unwrap())
            .await
            .unwrap();
        let second = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run(1, || Ok(2)).await }
        });
        tokio::task::yield_now().await;
        while !second.is_finished() {
            match pool.run(1, || Ok(3)).await {
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Overloaded);
                    break;
                }
                Ok(_) => tokio::task::yield_now().await,
            }
        }
        release.send(()).unwrap();
        assert_eq!(blocked.await.unwrap(), Ok(1));
        assert_eq!(second.await.unwrap(), Ok(2));
        let panicked = pool
            .run::<()>(1, || panic!("on purpose"))
            .await
            .unwrap_err();
        assert_eq!(panicked.kind, ErrorKind::Internal);
        assert_eq!(pool.run(1, || Ok(4)).await, Ok(4));
    }

    #[tokio::test]
    async fn a_job_waits_only_for_jobs_of_its_own_size() {
        let pool = pool(1, 1);
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let large = tokio::spawn({
            let pool = pool.clone();
            async move {
                pool.run(1 << 20, move || gate.recv().map_err(|_| stopped()))
                    .await
            }
        });
        for size in [
            0,
            SIZE_CLASS_BYTES[0] - 1,
            SIZE_CLASS_BYTES[0],
            SIZE_CLASS_BYTES[1] - 1,
        ] {
            assert_eq!(pool.run(size, || Ok(())).await, Ok(()), "{size}");
        }
        assert!(!large.is_finished());
        release.send(()).unwrap();
        assert_eq!(large.await.unwrap(), Ok(()));
    }
}
