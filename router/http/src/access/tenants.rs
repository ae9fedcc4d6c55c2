//! Tenants by key, and the requests that they have open.

use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use penstock_request::tenant::{ActiveRequest, Tenant};

use super::keys::KeyHash;

/// The tenants of a server, which may be replaced while it runs. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tenants(Arc<RwLock<Arc<[KeyedTenant]>>>);

/// A tenant with its keys.
#[derive(Clone, Debug)]
pub struct KeyedTenant {
    /// Its keys; at least one.
    pub keys: Vec<KeyHash>,
    /// The tenant.
    pub tenant: Arc<Tenant>,
}

/// A response's body; its request counts as open until it is dropped.
struct CountedBody {
    body: Body,
    _active: ActiveRequest,
}

impl Tenants {
    /// Replaces all tenants. Those with the name of a former one continue its usage.
    pub fn replace(&self, mut tenants: Vec<KeyedTenant>) {
        let former = self.all();
        for KeyedTenant { tenant, .. } in &mut tenants {
            let same = former.iter().find(|other| other.tenant.name == tenant.name);
            if let Some(same) = same {
                *tenant = Arc::new(Tenant::clone(tenant).continuing(&same.tenant));
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tenants.into();
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Returns the tenant of one of these keys; compares all, so that the time does not show which.
    pub(super) fn find(&self, presented: &[KeyHash]) -> Option<Arc<Tenant>> {
        let mut found = None;
        for known in self.all().iter() {
            if matches(&known.keys, presented) {
                found = Some(Arc::clone(&known.tenant));
            }
        }
        found
    }

    fn all(&self) -> Arc<[KeyedTenant]> {
        let tenants = self.0.read();
        Arc::clone(&tenants.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns whether a key was presented; compares all.
pub(super) fn matches(keys: &[KeyHash], presented: &[KeyHash]) -> bool {
    let pairs = keys
        .iter()
        .flat_map(|key| presented.iter().map(move |other| key.equals(other)));
    pairs.filter(|equal| *equal).count() > 0
}

/// Returns `body` such that the request counts as open until it has been sent.
pub(super) fn counted(body: Body, active: ActiveRequest) -> Body {
    Body::new(CountedBody {
        body,
        _active: active,
    })
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
