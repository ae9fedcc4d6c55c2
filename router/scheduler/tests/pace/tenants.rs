//! What tenants get while others send as much as they can.

use crate::SECOND;
use crate::server::{Client, Server};
use penstock_scheduler::ids::{Micros, RequestId};
use penstock_scheduler::request::AddError;

/// Tenants, each with its weight.
const GREEDY: (u64, u32) = (1, 1);
const POLITE: (u64, u32) = (2, 1);
const HEAVY: (u64, u32) = (3, 3);

impl Server {
    /// Returns how many steps were planned between the arrival of a request and its first token.
    fn steps_to_first_token(&mut self, request: u64) -> usize {
        let before = self.steps.len();
        while self.clients[&request].tokens.is_empty() {
            self.advance(u64::MAX - 1);
        }
        self.steps.len() - before
    }

    /// Returns the generated tokens of a tenant since `since`.
    fn generated(&self, tenant: (u64, u32), since: u64) -> f64 {
        let own = self
            .clients
            .values()
            .filter(|client| client.tenant == tenant.0);
        let tokens = own.flat_map(|client| &client.tokens);
        tokens.filter(|at| **at >= since).count() as f64
    }

    /// Advances until a tenant has no request that waits for its first token.
    fn until_started(&mut self, tenant: (u64, u32)) {
        let waits = |client: &Client| client.tenant == tenant.0 && client.tokens.is_empty();
        self.until_all(|client| !waits(client));
    }
}

/// Returns Jain's index: 1 if all are equal, 1/n if one has everything.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// A greedy tenant has taken all slots, and a thousand of its requests wait.
#[test]
fn a_thousand_requests_of_one_tenant_do_not_delay_another() {
    for (prompt, answer) in [(512, 400), (4_096, 100), (32_768, 50)] {
        let mut server = Server::shared(32);
        for _ in 0..1_032 {
            server.arrive_for(GREEDY, prompt, answer);
        }
        server.stream(3 * SECOND);
        let mut longest = (0, 0);
        for _ in 0..20 {
            let polite = server.arrive_for(POLITE, 64, 4);
            let steps = server.steps_to_first_token(polite);
            let waited = server.clients[&polite].waited().unwrap();
            longest = longest.max((steps, waited));
            server.until_all(|client| client.over || client.tenant == GREEDY.0);
            server.stream(server.now + SECOND / 7);
        }
        println!(
            "prompts of {prompt}: at most {} steps, {} us",
            longest.0, longest.1
        );
        // Two plans are in flight when it comes. The next one has its first chunk, and one more is
        // planned before the outcome arrives.
        assert!(longest.0 <= 3, "{prompt}: {longest:?}");
    }
}

/// A greedy tenant holds nearly all KV memory; others of its requests wait for more.
#[test]
fn a_tenant_without_memory_gets_it_from_the_greedy_one() {
    let longest = |blocks| {
        let mut server = Server::shared_with(64, |config| config.groups[0].blocks = blocks);
        for _ in 0..400 {
            server.arrive_for(GREEDY, 1_024, 200);
        }
        server.stream(3 * SECOND);
        let mut longest = 0;
        for _ in 0..5 {
            let polite = server.arrive_for(POLITE, 8_000, 4);
            longest = longest.max(server.steps_to_first_token(polite));
            server.until_all(|client| client.over || client.tenant == GREEDY.0);
            server.stream(server.now + SECOND);
        }
        let preemptions = server.scheduler.snapshot().preemptions;
        server.answer_all();
        (longest, preemptions)
    };
    let ((ample, _), (scarce, preemptions)) = (longest(50_000), longest(2_000));
    println!("{ample} steps, {scarce} if memory is scarce; {preemptions} preemptions");
    // A plan preempts one sequence of about 70 blocks, until 500 are free.
    assert!(scarce <= ample + 10, "{scarce}");
}

#[test]
fn a_full_queue_has_places_for_other_tenants() {
    let mut server = Server::shared_with(4, |config| config.max_waiting = 100);
    for _ in 0..100 {
        server.arrive_for(GREEDY, 16, 4);
    }
    let mut add = |tenant: (u64, u32)| {
        let mut request = server.request(16, 4);
        request.id = RequestId(server.scheduler.snapshot().waiting as u64);
        request.class.tenant = tenant.0;
        server.scheduler.add(request, Micros(server.now))
    };
    assert_eq!(add(GREEDY), Err(AddError::QueueFull));
    for _ in 0..50 {
        add(POLITE).unwrap();
    }
    assert_eq!(add(POLITE), Err(AddError::QueueFull));
    for _ in 0..33 {
        add(HEAVY).unwrap();
    }
    assert_eq!(add(HEAVY), Err(AddError::QueueFull));
}

#[test]
fn tenants_get_equal_shares_at_loads_of_a_hundred_to_one() {
    let mut server = Server::shared(32);
    for _ in 0..6_400 {
        server.arrive_for(GREEDY, 256, 128);
    }
    server.stream(2 * SECOND);
    let since = server.now;
    for _ in 0..64 {
        server.arrive_for(POLITE, 256, 128);
    }
    server.until_started(POLITE);
    let shares = [GREEDY, POLITE].map(|tenant| server.generated(tenant, since));
    let index = jain(&shares);
    println!("tokens {shares:?}: Jain's index {index:.4}");
    assert!(index >= 0.95, "{shares:?}: {index}");
}

#[test]
fn shares_follow_weights() {
    let mut server = Server::shared(32);
    for _ in 0..400 {
        server.arrive_for(POLITE, 256, 128);
        server.arrive_for(HEAVY, 256, 128);
    }
    // While the first slots were taken, weights did not count.
    server.stream(4 * SECOND);
    let since = server.now;
    server.stream(12 * SECOND);
    let [light, heavy] = [POLITE, HEAVY].map(|tenant| server.generated(tenant, since));
    println!("{light} and {heavy} tokens");
    assert!((2.7..=3.3).contains(&(heavy / light)), "{}", heavy / light);
}

/// One tenant alone gets the throughput of first come, first served.
#[test]
fn shares_cost_nothing_without_competition() {
    let requests = 300;
    let time = |mut server: Server| {
        for _ in 0..requests {
            server.arrive_for(GREEDY, 512, 64);
        }
        server.answer_all();
        server.now
    };
    let mut many = Server::shared(64);
    for request in 0..requests {
        many.arrive_for((request, 1), 512, 64);
    }
    many.answer_all();
    let one = time(Server::shared(64));
    println!("one tenant {one} us, {requests} tenants {} us", many.now);
    // Requests of equal size end at the same times, whichever tenants sent them.
    assert!(many.now as f64 <= 1.01 * one as f64, "{} us", many.now);
}
