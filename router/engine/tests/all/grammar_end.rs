//! How a choice with a grammar ends: the grammar may force the end when few tokens are left.

use penstock_engine::{Engine, EngineConfig};
use penstock_mock_shard::{Eos, Fault, Geometry, MockConfig};
use penstock_request::types::{End, EngineRequest};

use crate::support::{MockWorkers, answer, answers, checked, engine, ready, request};

const END: u32 = 2;

async fn with_faults(faults: Vec<Fault>) -> Engine {
    let config = MockConfig {
        eos: Eos { id: END, every: 12 },
        geometry: Geometry::default(),
        faults,
        ..checked()
    };
    let engine = engine(MockWorkers::one(config), EngineConfig::default());
    ready(&engine).await;
    engine
}

fn ends_by_a_stop_token(choices: u32) -> EngineRequest {
    let mut request = request(vec![1, 2, 3], 200);
    request.stopping.stop_token_ids = vec![END];
    request.sampling.temperature = 1.0;
    request.choices = choices;
    request
}

#[tokio::test]
async fn a_forced_end_is_reported_as_length() {
    let free = answer(&with_faults(vec![]).await, ends_by_a_stop_token(1)).await;
    assert_eq!((free.0.last(), &free.1), (Some(&END), &End::StopToken));
    assert!(free.0.len() > 3, "the end must come after step 2");

    let engine = with_faults(vec![Fault::Closing(2)]).await;
    let forced = answer(&engine, ends_by_a_stop_token(1)).await;
    assert_eq!(forced, (free.0.clone(), End::Length));
    let next = answer(&engine, ends_by_a_stop_token(1)).await;
    assert_eq!(next, free, "only the first request was forced");
}

#[tokio::test]
async fn a_forced_end_of_one_choice_is_not_that_of_another() {
    let free = answers(&with_faults(vec![]).await, ends_by_a_stop_token(2)).await;
    assert!(
        free.iter()
            .all(|(ids, end)| ids.len() > 3 && *end == End::StopToken)
    );

    let engine = with_faults(vec![Fault::Closing(2)]).await;
    let forced = answers(&engine, ends_by_a_stop_token(2)).await;
    assert_eq!(forced[0], (free[0].0.clone(), End::Length));
    assert_eq!(forced[1], free[1]);
}
