//! What `/live`, `/health` and `/ready` answer in each state of the engine.

use penstock_request::EngineState;

use crate::scripted::Server;

/// Paths that mean the same as `/live`, `/health` and `/ready`, in this order.
const PATHS: [&[&str]; 3] = [&["/live"], &["/health", "/ping", "/"], &["/ready"]];
#[cfg(feature = "kserve")]
const KSERVE_PATHS: [&[&str]; 3] = [
    &["/v2/health/live"],
    &[],
    &["/v2/health/ready", "/v2/models/brook/ready"],
];
#[cfg(not(feature = "kserve"))]
const KSERVE_PATHS: [&[&str]; 3] = [&[]; 3];

async fn check(server: &Server, expected: [u16; 3], when: &str) {
    for paths in [PATHS, KSERVE_PATHS] {
        for (paths, expected) in paths.into_iter().zip(expected) {
            for path in paths {
                let reply = server.get(path).await;
                assert_eq!(reply.status, expected, "{path} {when}");
                let hint = reply.headers.contains_key("retry-after");
                assert!(
                    hint || expected == 200 || path.contains("models"),
                    "{path} {when}"
                );
            }
        }
    }
}

#[tokio::test]
async fn only_an_engine_that_can_serve_is_healthy() {
    let server = Server::new();
    let restarting = EngineState::Restarting {
        reason: "worker 0 was lost".into(),
    };
    let stopped = EngineState::Stopped {
        reason: "no such file".into(),
    };
    for (state, healthy) in [
        (EngineState::initial(), 503),
        (EngineState::Ready, 200),
        (restarting, 503),
        (EngineState::Draining, 503),
        (stopped, 503),
    ] {
        let when = format!("while {state:?}");
        server.backend.set_state(state);
        check(&server, [200, healthy, healthy], &when).await;
    }
}

#[tokio::test]
async fn a_server_whose_step_is_overdue_is_healthy_but_not_ready() {
    let server = Server::new();
    server.backend.set_step_overdue(true);
    check(&server, [200, 200, 503], "while a step is overdue").await;
    assert!(
        server
            .get("/ready")
            .await
            .message()
            .contains("longer than expected")
    );
    server.backend.set_step_overdue(false);
    check(&server, [200, 200, 200], "after the step").await;
}
