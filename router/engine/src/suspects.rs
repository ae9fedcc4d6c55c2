//! Finds the request that makes the workers fail.
//!
//! All requests that were in flight at a loss are *suspects*. They return to the workers in groups:
//! the older half, then half of the rest, and so on; the newest, which is the likeliest cause, comes
//! alone. A request is *cleared* once it has got past the steps that were in flight at the loss. A
//! group is released once all requests of the group before it are cleared, or after
//! `MAX_GROUP_STEPS` answered steps. Requests that were not in flight wait for all groups.
//!
//! So the cause is found by bisection. At the next loss, the cause is among the requests that were
//! released but not cleared, mostly those of one group. If there is only one, it was *alone*. A
//! request that was alone at its second loss in a row or a later one is condemned: it ends with an
//! error. Others lose only the time of some steps.
//!
//! Workers may also be killed from outside, at any time, which is seldom a request's fault. So after
//! the first such loss all requests return at once; only if they do not get past their steps before
//! the next loss, they return in groups.
//!
//! A request that was alone by accident goes on where possible:
//!
//! - A suspect that returned together with requests that were not in flight, as after a kill from
//!   outside, was not alone: the cause may be one of those.
//! - A failed step costs little, because the workers go on. So it condemns a request only when it
//!   was alone at two losses: two other errors in a row, one in a step of its own, are no proof.
//! - Kills from outside condemn a request only if they keep coming while it is alone: at its fourth
//!   loss in a row, the third at which it was alone.
//! - A slow request, which is prepared before it runs, gets on later than the others, so it is
//!   often the only one that was not cleared. If others were in flight with it, it is condemned only
//!   when it was alone at two losses, or at eight if the workers were killed from outside: its
//!   preparation starts again at each of them.

use std::collections::{HashMap, VecDeque};

use penstock_scheduler::ids::RequestId;

/// Losses without progress in between after which a request that was alone at the last is condemned.
const MAX_LOSSES: u32 = 2;
/// Losses at which a request was alone after which it is condemned, if steps fail, or if it is slow
/// and others were in flight.
const MAX_LOSSES_ALONE: u32 = 2;
/// Losses at which a request was alone after which it is condemned, if workers are killed from
/// outside.
const MAX_LOSSES_ALONE_KILLED: u32 = 3;
/// The same for a slow request, if others were in flight.
const MAX_LOSSES_ALONE_SLOW_KILLED: u32 = 8;
/// Answered steps after which a group no longer holds up the next one. Its requests stay suspects.
const MAX_GROUP_STEPS: u32 = 256;

/// A request that was in flight at a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlight {
    pub(super) id: RequestId,
    /// Its runs in the steps that were in flight.
    pub(super) runs: u32,
    /// Whether it is prepared before it runs. It goes last, because others would wait for more than
    /// its steps, and is condemned later (see the module's documentation).
    pub(super) slow: bool,
}

/// What a loss says about the requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The workers failed by themselves.
    Strong,
    /// A step failed; the workers go on.
    FailedStep,
    /// The workers were killed from outside: by a person, or because the host's memory was short.
    Weak,
    /// The workers were not able to run anything since an earlier failure.
    Nothing,
}

/// What is known about a suspect.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// Losses at which it was in flight, without being cleared in between.
    losses: u32,
    /// Those of them at which it was the only suspect.
    alone: u32,
    /// Emissions until it is cleared.
    left: u32,
    /// Whether the workers may run it.
    released: bool,
}

/// The suspects, and the order in which they return.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    suspicions: HashMap<RequestId, Suspicion>,
    groups: VecDeque<Vec<RequestId>>,
    /// Answered steps since the last group was released.
    steps: u32,
    /// Whether requests that are no suspects wait.
    holding: bool,
    /// Whether requests that were not in flight at the last loss run beside suspects.
    mixed: bool,
}

/// Requests that the workers may run from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// These suspects.
    Group(Vec<RequestId>),
    /// All that were held back.
    Rest,
}

impl Suspicion {
    /// Whether a suspect that was alone at its last loss is the cause.
    fn condemns(&self, evidence: Evidence, slow_beside_others: bool) -> bool {
        match evidence {
            Evidence::Strong if !slow_beside_others => self.losses >= MAX_LOSSES,
            Evidence::Strong | Evidence::FailedStep => self.alone >= MAX_LOSSES_ALONE,
            Evidence::Weak if slow_beside_others => self.alone >= MAX_LOSSES_ALONE_SLOW_KILLED,
            Evidence::Weak => self.alone >= MAX_LOSSES_ALONE_KILLED,
            Evidence::Nothing => false,
        }
    }
}

impl Suspects {
    /// Handles a loss. Returns the request that is found to be the cause.
    pub(super) fn on_loss(
        &mut self,
        in_flight: &[InFlight],
        evidence: Evidence,
    ) -> Option<RequestId> {
        let mut in_flight = in_flight.to_vec();
        in_flight.sort_unstable_by_key(|each| (each.slow, each.id));
        let unreleased = self.unreleased();
        let is_uncleared = |each: &InFlight| self.suspicions.contains_key(&each.id);
        let (mut uncleared, cleared): (Vec<_>, Vec<_>) =
            in_flight.iter().copied().partition(is_uncleared);
        let beside_others = in_flight.len() > 1;
        let mixed = std::mem::take(&mut self.mixed) && beside_others;
        let alone = uncleared.first().filter(|_| uncleared.len() == 1 && !mixed);
        self.suspect(&in_flight, alone.is_some(), &unreleased);
        let condemned = alone.and_then(|&only| self.condemn(only, beside_others, evidence));
        uncleared.retain(|each| Some(each.id) != condemned);
        let new = uncleared.is_empty() && condemned.is_none();
        self.groups = match (new, evidence) {
            (true, Evidence::Weak) if unreleased.is_empty() => VecDeque::new(),
            (true, Evidence::Strong | Evidence::FailedStep | Evidence::Nothing) => {
                halves(&ids(&cleared)).collect()
            }
            // The cause, if there is one, is among the uncleared ones.
            _ => std::iter::once(ids(&cleared))
                .chain(halves(&ids(&uncleared)))
                .collect(),
        };
        self.groups.extend(halves(&unreleased));
        self.groups.retain(|group| !group.is_empty());
        self.holding = !self.groups.is_empty();
        condemned
    }

    /// Makes the requests in flight suspects, beside those that have not been released. `alone`:
    /// whether one of them is the only one that was not cleared.
    fn suspect(&mut self, in_flight: &[InFlight], alone: bool, unreleased: &[RequestId]) {
        let mut earlier = std::mem::take(&mut self.suspicions);
        for each in in_flight {
            let before = earlier.get(&each.id);
            let suspicion = Suspicion {
                losses: before.map_or(0, |before| before.losses) + 1,
                alone: before.map_or(0, |before| before.alone + u32::from(alone)),
                left: each.runs.max(1),
                released: false,
            };
            self.suspicions.insert(each.id, suspicion);
        }
        for id in unreleased {
            self.suspicions.extend(earlier.remove_entry(id));
        }
    }

    /// Ends the search if the only request that was not cleared is the cause.
    fn condemn(
        &mut self,
        only: InFlight,
        beside_others: bool,
        evidence: Evidence,
    ) -> Option<RequestId> {
        let suspicion = self.suspicions.get(&only.id)?;
        if !suspicion.condemns(evidence, only.slow && beside_others) {
            return None;
        }
        self.suspicions.remove(&only.id);
        Some(only.id)
    }

    /// Whether requests that are no suspects wait until all suspects have run.
    pub(super) fn is_holding(&self) -> bool {
        self.holding
    }

    /// Whether there are suspects.
    pub(super) fn any(&self) -> bool {
        !self.suspicions.is_empty()
    }

    /// Holds back all requests until the next `release`.
    pub(super) fn hold_rest(&mut self) {
        self.holding = true;
    }

    /// Counts an emission of a request.
    pub(super) fn on_emission(&mut self, id: RequestId) {
        if let Some(suspicion) = self.suspicions.get_mut(&id) {
            suspicion.left = suspicion.left.saturating_sub(1);
            if suspicion.left == 0 {
                self.suspicions.remove(&id);
            }
        }
    }

    /// Counts an answered step.
    pub(super) fn on_step(&mut self) {
        self.steps = self.steps.saturating_add(1);
    }

    /// Returns what may run from now on, if anything new may. `alive`: whether a request still
    /// exists.
    pub(super) fn release(&mut self, alive: impl Fn(RequestId) -> bool) -> Option<Release> {
        if !self.holding {
            return None;
        }
        self.suspicions.retain(|&id, _| alive(id));
        let waits = self.suspicions.values().any(|suspicion| suspicion.released);
        if waits && self.steps < MAX_GROUP_STEPS {
            return None;
        }
        self.steps = 0;
        while let Some(mut group) = self.groups.pop_front() {
            group.retain(|id| self.suspicions.contains_key(id));
            for id in &group {
                if let Some(suspicion) = self.suspicions.get_mut(id) {
                    suspicion.released = true;
                }
            }
            if !group.is_empty() {
                return Some(Release::Group(group));
            }
        }
        self.holding = false;
        self.mixed = !self.suspicions.is_empty();
        Some(Release::Rest)
    }

    /// Returns the suspects that have not been released since the last loss, in their order.
    fn unreleased(&self) -> Vec<RequestId> {
        let waits = |id: &&RequestId| self.suspicions.contains_key(id);
        self.groups
            .iter()
            .flatten()
            .filter(waits)
            .copied()
            .collect()
    }
}

fn ids(requests: &[InFlight]) -> Vec<RequestId> {
    requests.iter().map(|each| each.id).collect()
}

/// Splits off the first half of the ids again and again; the last group has one id.
fn halves(ids: &[RequestId]) -> impl Iterator<Item = Vec<RequestId>> {
    let mut rest = ids.to_vec();
    std::iter::from_fn(move || {
        let half = rest.len().div_ceil(2);
        (half > 0).then(|| rest.drain(..half).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(ids: impl IntoIterator<Item = u64>) -> Vec<InFlight> {
        let one = |id| InFlight {
            id: RequestId(id),
            runs: 2,
            slow: false,
        };
        ids.into_iter().map(one).collect()
    }

    fn group(suspects: &mut Suspects) -> Vec<u64> {
        match suspects.release(|_| true) {
            Some(Release::Group(ids)) => ids.into_iter().map(|id| id.0).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn clear(suspects: &mut Suspects, ids: &[u64]) {
        for id in ids {
            suspects.on_emission(RequestId(*id));
            suspects.on_emission(RequestId(*id));
        }
    }

    #[test]
    fn groups_follow_one_another_and_the_newest_comes_alone() {
        let mut suspects = Suspects::default();
        assert_eq!(suspects.release(|_| true), None, "nothing is suspect");
        assert_eq!(
            suspects.on_loss(&in_flight([5, 1, 2, 3, 4]), Evidence::Strong),
            None
        );
        assert_eq!(group(&mut suspects), [1, 2, 3]);
        clear(&mut suspects, &[1, 2]);
        suspects.on_emission(RequestId(3));
        assert_eq!(suspects.release(|_| true), None, "3 had two runs in flight");
        clear(&mut suspects, &[3]);
        assert_eq!(group(&mut suspects), [4]);
        // 4 ended.
        let alive = |id: RequestId| id != RequestId(4);
        let last = Release::Group(vec![RequestId(5)]);
        assert_eq!(suspects.release(alive), Some(last));
        assert!(suspects.is_holding());
        clear(&mut suspects, &[5]);
        assert_eq!(suspects.release(|_| true), Some(Release::Rest));
        assert!(!suspects.is_holding());
        assert_eq!(suspects.release(|_| true), None);
    }

    #[test]
    fn slow_ones_go_last() {
        let mut suspects = Suspects::default();
        let mut flying = in_flight([1, 2]);
        flying[0].slow = true;
        suspects.on_loss(&flying, Evidence::Strong);
        assert_eq!(group(&mut suspects), [2]);
    }

    #[test]
    fn a_group_that_does_not_get_past_its_steps_is_not_waited_for_for_ever() {
        let mut suspects = Suspects::default();
        suspects.on_loss(&in_flight([1, 2]), Evidence::Strong);
        assert_eq!(group(&mut suspects), [1]);
        for _ in 1..MAX_GROUP_STEPS {
            suspects.on_step();
            assert_eq!(suspects.release(|_| true), None);
        }
        suspects.on_step();
        assert_eq!(group(&mut suspects), [2]);
    }

    /// Returns the number of losses until the cause is found among `count` requests.
    fn losses_to_find(cause: u64, count: u64) -> u32 {
        let mut suspects = Suspects::default();
        let mut losses = 1;
        let mut flying: Vec<u64> = (0..count).collect();
        loop {
            if let Some(found) = suspects.on_loss(&in_flight(flying.drain(..)), Evidence::Strong) {
                assert_eq!(found, RequestId(cause));
                return losses;
            }
            losses += 1;
            loop {
                let ids = group(&mut suspects);
                flying.extend(&ids);
                if ids.contains(&cause) {
                    break;
                }
                clear(&mut suspects, &ids);
            }
        }
    }

    #[test]
    fn the_cause_is_found_among_any_number_of_others() {
        for count in [1, 2, 3, 16, 100, 256] {
            assert_eq!(losses_to_find(count - 1, count), 2, "the newest of {count}");
            let most = (0..count).map(|cause| losses_to_find(cause, count)).max();
            let bound = 2 + count.ilog2();
            assert!(most <= Some(bound + 1), "{most:?} losses for {count}");
        }
    }

    #[test]
    fn losses_without_a_cause_condemn_nobody() {
        let mut suspects = Suspects::default();
        for _ in 0..100 {
            // One stream, which gets on between losses.
            assert_eq!(suspects.on_loss(&in_flight([1]), Evidence::Strong), None);
            assert_eq!(group(&mut suspects), [1]);
            clear(&mut suspects, &[1]);
            assert_eq!(suspects.release(|_| true), Some(Release::Rest));
        }
    }

    #[test]
    fn kills_from_outside_condemn_only_a_request_that_is_alone_again_and_again() {
        let mut suspects = Suspects::default();
        assert_eq!(suspects.on_loss(&in_flight([1]), Evidence::Weak), None);
        for _ in 1..=2 {
            assert_eq!(suspects.on_loss(&in_flight([1]), Evidence::Weak), None);
            assert_eq!(group(&mut suspects), [1]);
        }
        let found = suspects.on_loss(&in_flight([1]), Evidence::Weak);
        assert_eq!(found, Some(RequestId(1)));
    }

    /// The others get on after each kill; its preparation never ends before the next one.
    #[test]
    fn kills_from_outside_condemn_a_slow_one_beside_others_late() {
        let mut suspects = Suspects::default();
        let mut flying = in_flight([1, 2]);
        flying[1].slow = true;
        let mut losses = 0;
        while suspects.on_loss(&flying, Evidence::Weak).is_none() {
            losses += 1;
            assert!(losses < 20, "never condemned");
            while suspects.release(|_| true).is_some() {
                clear(&mut suspects, &[1]);
            }
            clear(&mut suspects, &[1]);
        }
        assert_eq!(losses, MAX_LOSSES_ALONE_SLOW_KILLED);
    }

    #[test]
    fn a_request_that_comes_after_a_kill_from_outside_may_be_the_cause() {
        let mut suspects = Suspects::default();
        suspects.on_loss(&in_flight([1]), Evidence::Weak);
        suspects.hold_rest();
        assert_eq!(suspects.release(|_| true), Some(Release::Rest));
        // 2 is the cause; 1 has not got on since it was killed.
        assert_eq!(suspects.on_loss(&in_flight([1, 2]), Evidence::Strong), None);
        assert_eq!(group(&mut suspects), [2]);
        let found = suspects.on_loss(&in_flight([2]), Evidence::Strong);
        assert_eq!(found, Some(RequestId(2)));
        assert_eq!(group(&mut suspects), [1]);
    }

    #[test]
    fn after_a_kill_from_outside_all_return_at_once_unless_they_do_not_get_on() {
        let mut suspects = Suspects::default();
        for _ in 0..3 {
            suspects.on_loss(&in_flight([1, 2, 3, 4]), Evidence::Weak);
            assert!(!suspects.is_holding());
            // What an epoch's begin holds back is released.
            suspects.hold_rest();
            assert_eq!(suspects.release(|_| true), Some(Release::Rest));
            clear(&mut suspects, &[1, 2, 3, 4]);
            assert!(!suspects.any());
        }
        suspects.on_loss(&in_flight([1, 2, 3, 4]), Evidence::Weak);
        clear(&mut suspects, &[1]);
        suspects.on_loss(&in_flight([1, 2, 3, 4]), Evidence::Weak);
        assert_eq!(group(&mut suspects), [1]);
        clear(&mut suspects, &[1]);
        assert_eq!(group(&mut suspects), [2, 3]);
        // 4 was not released.
        suspects.on_loss(&in_flight([1, 2, 3]), Evidence::Weak);
        assert_eq!(group(&mut suspects), [1]);
        clear(&mut suspects, &[1]);
        assert_eq!(group(&mut suspects), [2]);
        clear(&mut suspects, &[2]);
        assert_eq!(group(&mut suspects), [3]);
        clear(&mut suspects, &[3]);
        assert_eq!(group(&mut suspects), [4]);
    }

    #[test]
    fn a_slow_one_is_condemned_when_it_was_alone_twice() {
        let mut suspects = Suspects::default();
        let mut flying = in_flight([1, 2]);
        flying[1].slow = true;
        // 1 gets on each time, 2 never.
        for _ in 0..=1 {
            assert_eq!(suspects.on_loss(&flying, Evidence::Strong), None);
            assert_eq!(group(&mut suspects), [1]);
            clear(&mut suspects, &[1]);
            assert_eq!(group(&mut suspects), [2]);
        }
        let found = suspects.on_loss(&flying, Evidence::Strong);
        assert_eq!(found, Some(RequestId(2)));
    }

    #[test]
    fn failed_steps_condemn_a_request_that_was_alone_twice() {
        let mut suspects = Suspects::default();
        assert_eq!(
            suspects.on_loss(&in_flight([1, 2]), Evidence::FailedStep),
            None
        );
        assert_eq!(group(&mut suspects), [1]);
        clear(&mut suspects, &[1]);
        assert_eq!(group(&mut suspects), [2]);
        // Another error, in a step of its own.
        assert_eq!(
            suspects.on_loss(&in_flight([2]), Evidence::FailedStep),
            None
        );
        assert_eq!(group(&mut suspects), [2]);
        let found = suspects.on_loss(&in_flight([2]), Evidence::FailedStep);
        assert_eq!(found, Some(RequestId(2)));
    }

    #[test]
    fn workers_that_run_nothing_condemn_nobody() {
        let mut suspects = Suspects::default();
        for _ in 0..5 {
            assert_eq!(suspects.on_loss(&in_flight([1]), Evidence::Nothing), None);
            assert_eq!(group(&mut suspects), [1]);
        }
        assert_eq!(
            suspects.on_loss(&in_flight([1]), Evidence::Strong),
            Some(RequestId(1))
        );
        assert!(!suspects.is_holding());
    }

    #[test]
    fn the_others_go_on_once_the_cause_is_found() {
        let mut suspects = Suspects::default();
        suspects.on_loss(&in_flight([1, 2, 3, 4]), Evidence::Strong);
        assert_eq!(group(&mut suspects), [1, 2]);
        clear(&mut suspects, &[1, 2]);
        assert_eq!(group(&mut suspects), [3]);
        // 3 is the cause; 4 was not released.
        assert_eq!(
            suspects.on_loss(&in_flight([1, 2, 3]), Evidence::Strong),
            Some(RequestId(3))
        );
        assert_eq!(group(&mut suspects), [1, 2]);
        clear(&mut suspects, &[1, 2]);
        assert_eq!(group(&mut suspects), [4]);
        clear(&mut suspects, &[4]);
        assert_eq!(suspects.release(|_| true), Some(Release::Rest));
    }
}
