//! A resource, such as memory budget, that is held while a prompt's text is in memory.

use std::fmt;
use std::sync::Arc;

/// A resource that is held until a prompt's text has become token ids, such as a share of a memory
/// budget; released when the last clone is dropped. The default holds nothing.
#[derive(Clone, Debug, Default)]
pub struct Charge(#[expect(dead_code, reason = "it is held, not read")] Option<Arc<dyn Held>>);

/// Any value that threads may share.
trait Held: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Held for T {}

impl Charge {
    /// Holds `resource`.
    pub fn new(resource: impl fmt::Debug + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(resource)))
    }
}
