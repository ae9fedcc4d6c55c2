//! What each account got: virtual token counters (VTC; Sheng et al., OSDI 2024).
//!
//! The policy assigns each sequence to an account, such as a tenant's. An account's counter grows
//! with the tokens that its sequences compute, divided by its weight. The queue serves the account
//! with the least counter, so that accounts which always wait get shares in proportion to their
//! weights. An account that waited for nothing must not save up service: when it queues again, its
//! counter rises to the least of those that wait.

use std::collections::BTreeMap;

/// Units of service per prompt token at weight 1.
const UNIT: u64 = 1 << 16;
/// A generated token costs as much as this many prompt tokens.
const OUTPUT_COST: u64 = 2;
/// Known accounts beyond which those without sequences are forgotten.
const MOST_KNOWN: usize = 4096;

/// An account's index.
pub(crate) type AccountKey = u32;

/// The counters of all accounts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    keys: BTreeMap<u64, AccountKey>,
    accounts: Vec<Account>,
    vacant: Vec<AccountKey>,
    /// The counter of the last account that was served from the queue.
    time: u64,
}

#[derive(Clone, Debug, Default)]
struct Account {
    tenant: u64,
    weight: u64,
    /// Service received, in units.
    served: u64,
    /// Live sequences.
    sequences: usize,
    /// Sequences that have begun and not ended: in a slot, or preempted.
    begun: usize,
}

impl Accounts {
    /// Returns the account of `tenant`, for one more sequence.
    pub(crate) fn open(&mut self, tenant: u64, weight: u32) -> AccountKey {
        let key = match self.keys.get(&tenant) {
            Some(&key) => key,
            None => self.create(tenant),
        };
        let account = &mut self.accounts[key as usize];
        account.weight = u64::from(weight.max(1));
        account.sequences += 1;
        key
    }

    /// Returns the account of `tenant`, if it is known.
    pub(crate) fn find(&self, tenant: u64) -> Option<AccountKey> {
        self.keys.get(&tenant).copied()
    }

    /// Counts one more sequence of an account; `begun`: one that has begun.
    pub(crate) fn open_again(&mut self, key: AccountKey, begun: bool) {
        let account = &mut self.accounts[key as usize];
        account.sequences += 1;
        account.begun += usize::from(begun);
    }

    /// Counts one sequence less; `begun`: one that had begun.
    pub(crate) fn close(&mut self, key: AccountKey, begun: bool) {
        let account = &mut self.accounts[key as usize];
        account.sequences -= 1;
        account.begun -= usize::from(begun);
        if account.sequences == 0 && account.served <= self.time {
            // A returning account starts there anyway.
            self.forget(key);
        }
    }

    /// Counts a sequence that begins.
    pub(crate) fn begin(&mut self, key: AccountKey) {
        let account = &mut self.accounts[key as usize];
        account.begun += 1;
        self.time = self.time.max(account.served);
    }

    /// Returns the sequences that have begun and not ended.
    pub(crate) fn begun(&self, key: AccountKey) -> usize {
        self.accounts[key as usize].begun
    }

    /// Returns the service that an account received.
    pub(crate) fn served(&self, key: AccountKey) -> u64 {
        self.accounts[key as usize].served
    }

    /// Returns what the service of an account will be after `tokens` more prompt tokens.
    pub(crate) fn after(&self, key: AccountKey, served: u64, tokens: u32) -> u64 {
        served + u64::from(tokens) * UNIT / self.accounts[key as usize].weight
    }

    /// Charges computed prompt tokens.
    pub(crate) fn charge_prompt(&mut self, key: AccountKey, tokens: u32) {
        let account = &mut self.accounts[key as usize];
        account.served += u64::from(tokens) * UNIT / account.weight;
    }

    /// Charges generated tokens.
    pub(crate) fn charge_output(&mut self, key: AccountKey, tokens: u32) {
        let account = &mut self.accounts[key as usize];
        account.served += OUTPUT_COST * u64::from(tokens) * UNIT / account.weight;
    }

    /// Raises the counter of an account that begins to wait. `least`: the least of those that wait.
    pub(crate) fn lift(&mut self, key: AccountKey, least: Option<u64>) {
        let floor = least.unwrap_or(self.time);
        let account = &mut self.accounts[key as usize];
        account.served = account.served.max(floor);
    }

    /// Returns how many sequences live and have begun, per account; for `check`.
    pub(crate) fn totals(&self) -> BTreeMap<AccountKey, (usize, usize)> {
        let live = self.keys.values().map(|&key| {
            let account = &self.accounts[key as usize];
            (key, (account.sequences, account.begun))
        });
        live.filter(|(_, (sequences, _))| *sequences > 0).collect()
    }

    fn create(&mut self, tenant: u64) -> AccountKey {
        if self.keys.len() >= MOST_KNOWN {
            self.forget_idle();
        }
        let account = Account {
            tenant,
            ..Account::default()
        };
        let key = match self.vacant.pop() {
            Some(key) => {
                self.accounts[key as usize] = account;
                key
            }
            None => {
                self.accounts.push(account);
                (self.accounts.len() - 1) as AccountKey
            }
        };
        self.keys.insert(tenant, key);
        key
    }

    fn forget_idle(&mut self) {
        let idle = |key: &&AccountKey| self.accounts[**key as usize].sequences == 0;
        let idle: Vec<AccountKey> = self.keys.values().filter(idle).copied().collect();
        for key in idle {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: AccountKey) {
        self.keys.remove(&self.accounts[key as usize].tenant);
        self.vacant.push(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_divided_by_weight_and_output_costs_double() {
        let mut accounts = Accounts::default();
        let (light, heavy) = (accounts.open(7, 1), accounts.open(8, 2));
        accounts.charge_prompt(light, 100);
        accounts.charge_output(heavy, 100);
        assert_eq!(accounts.served(light), accounts.served(heavy));
        assert_eq!(accounts.after(light, 0, 50), accounts.after(heavy, 0, 100));
    }

    #[test]
    fn an_absent_account_saves_up_nothing_and_escapes_no_debt() {
        let mut accounts = Accounts::default();
        let (busy, idle) = (accounts.open(1, 1), accounts.open(2, 1));
        accounts.charge_prompt(busy, 1_000);
        accounts.lift(idle, Some(accounts.served(busy)));
        assert_eq!(accounts.served(idle), accounts.served(busy));
        accounts.charge_prompt(idle, 500);
        let served = accounts.served(idle);
        accounts.close(idle, false);
        // Nobody waits, and the account got more than the last one that began.
        let back = accounts.open(2, 1);
        accounts.lift(back, None);
        assert_eq!(accounts.served(back), served);
    }

    #[test]
    fn accounts_without_sequences_are_forgotten() {
        let mut accounts = Accounts::default();
        for tenant in 0..3 * MOST_KNOWN as u64 {
            let key = accounts.open(tenant, 1);
            accounts.charge_prompt(key, 1);
            accounts.close(key, false);
        }
        assert!(
            accounts.accounts.len() <= MOST_KNOWN,
            "{}",
            accounts.accounts.len()
        );
        let kept = accounts.open(0, 1);
        accounts.begin(kept);
        assert_eq!(accounts.totals(), [(kept, (1, 1))].into());
    }
}
