//! Tenants: who shares the server, and on whose behalf a request runs.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::{ApiError, ErrorKind};

/// Retry time of a request beyond the limit on concurrent requests: nobody knows when one ends.
const RETRY: Duration = Duration::from_secs(1);
const MINUTE: f64 = 60.0;

/// A tenant. Its usage is shared by all versions of its settings.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Name in messages.
    pub name: String,
    /// Share of the workers relative to other tenants.
    pub weight: u32,
    /// Priorities that its requests may have; others are moved to the nearest one.
    pub priorities: RangeInclusive<i32>,
    /// Maximum requests at a time.
    pub max_concurrent: Option<u32>,
    /// Maximum prompt and generated tokens per minute.
    pub tokens_per_minute: Option<u32>,
    usage: Arc<Mutex<Usage>>,
}

/// What a tenant uses.
#[derive(Debug)]
struct Usage {
    requests: u32,
    /// Tokens used beyond what the minute allows, less what has been made up for since `at`.
    tokens: f64,
    at: Instant,
}

/// A request of a tenant, counted until it is dropped.
#[derive(Debug)]
pub struct ActiveRequest(Arc<Tenant>);

/// On whose behalf a request runs, and how soon it is wanted.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The tenant of the request's key.
    pub tenant: Option<Arc<Tenant>>,
    /// Name that a gateway gave to the flow that the request belongs to; counts without a tenant.
    pub flow: Option<Box<str>>,
    /// Time within which the first token is wanted.
    pub first_token_within: Option<Duration>,
}

/// A caller, as the scheduler and the prefix cache see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Requests with the same number share.
    pub id: u64,
    /// Its weight relative to others.
    pub weight: u32,
    /// Whether it has a prefix cache of its own.
    pub isolated: bool,
}

tokio::task_local! {
    static CALLER: Caller;
}

impl Tenant {
    /// Creates a tenant of weight 1 without limits.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            weight: 1,
            priorities: i32::MIN..=i32::MAX,
            max_concurrent: None,
            tokens_per_minute: None,
            usage: Arc::new(Mutex::new(Usage {
                requests: 0,
                tokens: 0.0,
                at: Instant::now(),
            })),
        }
    }

    /// Takes over the usage of a former version of this tenant.
    #[must_use]
    pub fn continuing(self, former: &Self) -> Self {
        Self {
            usage: Arc::clone(&former.usage),
            ..self
        }
    }

    /// Begins a request at `now`.
    ///
    /// # Errors
    /// If a limit is reached; with the time after which it is not.
    pub fn begin(self: Arc<Self>, now: Instant) -> Result<ActiveRequest, ApiError> {
        let mut usage = self.usage();
        let refused = |limit: String, after| {
            let message = format!(
                "the tenant `{}` has reached its limit of {limit}",
                self.name
            );
            Err(ApiError::new(ErrorKind::Overloaded, message).retry(after))
        };
        if let Some(most) = self.max_concurrent
            && usage.requests >= most
        {
            return refused(format!("{most} concurrent requests"), RETRY);
        }
        if let Some(most) = self.tokens_per_minute {
            usage.make_up(most, now);
            let excess = usage.tokens - f64::from(most);
            if excess >= 0.0 {
                let wait = Duration::from_secs_f64((excess + 1.0) * MINUTE / f64::from(most));
                return refused(format!("{most} tokens per minute"), wait);
            }
        }
        usage.requests += 1;
        drop(usage);
        Ok(ActiveRequest(self))
    }

    /// Counts tokens that its requests used.
    pub fn charge(&self, tokens: u64, now: Instant) {
        if let Some(most) = self.tokens_per_minute {
            let mut usage = self.usage();
            usage.make_up(most, now);
            usage.tokens += tokens as f64;
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    /// Forgets the tokens that the time since the last call allows.
    fn make_up(&mut self, per_minute: u32, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens - passed * f64::from(per_minute) / MINUTE).max(0.0);
        self.at = self.at.max(now);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.usage().requests -= 1;
    }
}

impl Caller {
    /// Runs `work` on behalf of this caller.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CALLER.scope(self, work).await
    }

    /// Returns the caller of the current task; nobody in particular if it is unknown.
    #[must_use]
    pub fn current() -> Self {
        CALLER.try_with(Self::clone).unwrap_or_default()
    }

    /// Returns the share of a request: that of its tenant, else of its flow, else of the client's
    /// address. Only tenants have a prefix cache of their own.
    #[must_use]
    pub fn share(&self, client: Option<Client>) -> Share {
        let mut hasher = DefaultHasher::new();
        match (&self.tenant, &self.flow) {
            (Some(tenant), _) => ("tenant", &tenant.name).hash(&mut hasher),
            (None, Some(flow)) => ("flow", flow).hash(&mut hasher),
            (None, None) => client.hash(&mut hasher),
        }
        Share {
            id: hasher.finish(),
            weight: self.tenant.as_ref().map_or(1, |tenant| tenant.weight),
            isolated: self.tenant.is_some(),
        }
    }

    /// Returns the priority of a request that asks for `wanted`.
    #[must_use]
    pub fn priority(&self, wanted: i32) -> i32 {
        let allowed = self.tenant.as_ref().map(|tenant| &tenant.priorities);
        allowed.map_or(wanted, |allowed| {
            wanted.max(*allowed.start()).min(*allowed.end())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(change: impl FnOnce(&mut Tenant)) -> Arc<Tenant> {
        let mut tenant = Tenant::new("alice");
        change(&mut tenant);
        Arc::new(tenant)
    }

    #[test]
    fn concurrent_requests_are_counted_until_they_end() {
        let tenant = limited(|tenant| tenant.max_concurrent = Some(2));
        let now = Instant::now();
        let begin = || Arc::clone(&tenant).begin(now);
        let first = begin().unwrap();
        let _second = begin().unwrap();
        let refused = begin().unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Overloaded);
        assert!(refused.message.contains("`alice`") && refused.message.contains("2 concurrent"));
        drop(first);
        begin().unwrap();
        // Other settings of the same tenant count the same requests.
        let stricter = Tenant {
            max_concurrent: Some(1),
            ..Tenant::new("alice")
        };
        assert!(Arc::new(stricter.continuing(&tenant)).begin(now).is_err());
    }

    #[test]
    fn a_client_that_waits_as_long_as_it_is_asked_to_is_served() {
        let tenant = limited(|tenant| tenant.tokens_per_minute = Some(600));
        let begin = |now| Arc::clone(&tenant).begin(now);
        let now = Instant::now();
        begin(now).unwrap();
        tenant.charge(900, now);
        let wait = begin(now).unwrap_err().retry_after.unwrap();
        assert!((30.0..31.0).contains(&wait.as_secs_f64()), "{wait:?}");
        assert!(begin(now + wait / 2).is_err());
        begin(now + wait).unwrap();
        // Unused minutes are not saved up.
        let later = now + Duration::from_secs(3_600);
        tenant.charge(600, later);
        assert!(begin(later).is_err());
    }

    #[test]
    fn a_share_is_that_of_the_key_then_of_the_flow_then_of_the_address() {
        let client = |last| Some(Client::at([10, 0, 0, last].into()));
        let flow = Caller {
            flow: Some("a".into()),
            ..Caller::default()
        };
        let nobody = Caller::default();
        assert_eq!(flow.share(client(1)), flow.share(client(2)));
        assert_ne!(nobody.share(client(1)).id, nobody.share(client(2)).id);
        let tenant = limited(|tenant| {
            tenant.weight = 5;
            tenant.priorities = -1..=3;
        });
        let known = Caller {
            tenant: Some(tenant),
            ..flow.clone()
        };
        let share = known.share(client(1));
        assert_eq!((share.weight, share.isolated), (5, true));
        assert_ne!(share.id, flow.share(None).id);
        assert_eq!([-9, 2, 9].map(|wanted| known.priority(wanted)), [-1, 2, 3]);
        assert_eq!(nobody.priority(9), 9);
    }
}
