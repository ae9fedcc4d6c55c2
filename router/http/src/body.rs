//! Collects request bodies, plain or gzip, within a budget of the bytes in memory.
//!
//! Inflated bytes are limited and charged like those of any other body, so that a small body cannot
//! take much memory. The budget holds a body's bytes from its first one until its prompt is token
//! ids and its text is dropped. Requests that exceed it are refused, so that memory before the queue
//! does not grow with the number of clients.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;
use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use penstock_text::Charge;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Compressed bytes inflated between two yields to other tasks. They inflate to a few MiB at most.
const AT_ONCE: usize = 4 << 10;

/// Each body's first bytes come from a separate share, so that large bodies cannot keep small ones
/// out.
const FIRST_BYTES: usize = 64 << 10;
/// That share is this fraction (1/n) of the budget.
const FIRST_SHARE: usize = 4;
const RETRY: Duration = Duration::from_secs(1);

/// The content encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Plain,
    Gzip,
}

/// The decoded bytes of a body so far.
pub(super) struct BodyBuffer {
    bytes: Vec<u8>,
    /// Maximum number of bytes.
    limit: usize,
    holding: Holding,
    /// Why the body was refused.
    refused: Option<ApiError>,
}

/// Collects a body that may be compressed.
pub(super) enum BodyDecoder {
    Plain(BodyBuffer),
    Gzip(Box<MultiGzDecoder<BodyBuffer>>),
}

/// The budget of all bodies together. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    first: Arc<Semaphore>,
    rest: Arc<Semaphore>,
    held: Gauge,
    most: usize,
}

/// The bytes of a body that is still arriving.
#[derive(Debug)]
pub(crate) struct Holding {
    budget: Budget,
    bytes: usize,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Coding {
    /// Returns the encoding that the headers declare.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut coding = Self::Plain;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            let name = value.to_str().unwrap_or("").trim().to_ascii_lowercase();
            coding = match (coding, name.as_str()) {
                (coding, "identity" | "") => coding,
                (Self::Plain, "gzip" | "x-gzip") => Self::Gzip,
                (_, other) => return Err(unknown(other)),
            };
        }
        Ok(coding)
    }
}

fn unknown(name: &str) -> ApiError {
    let name = Excerpt::new(name);
    let message = format!(
        "`Content-Encoding` must be `gzip` or `identity`. Given: `{name}`. Send the body with one of these"
    );
    ApiError::new(ErrorKind::MediaType, message)
}

impl BodyBuffer {
    /// Creates a buffer of at most `limit` bytes, with capacity for `room`.
    pub(super) fn new(limit: usize, room: usize, holding: Holding) -> Self {
        Self {
            bytes: Vec::with_capacity(room),
            limit,
            holding,
            refused: None,
        }
    }

    pub(super) fn with_coding(self, coding: Coding) -> BodyDecoder {
        match coding {
            Coding::Plain => BodyDecoder::Plain(self),
            Coding::Gzip => BodyDecoder::Gzip(Box::new(MultiGzDecoder::new(self))),
        }
    }

    fn take(&mut self, part: &[u8]) -> Result<(), ApiError> {
        if part.len() > self.limit - self.bytes.len() {
            return Err(too_large(self.limit));
        }
        self.holding.add(part.len())?;
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

pub(super) fn too_large(limit: usize) -> ApiError {
    let message = format!("the request's body must have at most {limit} bytes");
    ApiError::new(ErrorKind::TooLarge, message)
}

impl Write for BodyBuffer {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.take(part).map_err(|refused| {
            self.refused = Some(refused);
            io::Error::other("the body is refused")
        })?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BodyDecoder {
    /// Adds the next bytes received.
    pub(super) async fn add(&mut self, part: &[u8]) -> Result<(), ApiError> {
        let decoder = match self {
            Self::Plain(collected) => return collected.take(part),
            Self::Gzip(decoder) => decoder,
        };
        for (index, part) in part.chunks(AT_ONCE).enumerate() {
            if index > 0 {
                tokio::task::yield_now().await;
            }
            if let Err(error) = decoder.write_all(part) {
                return Err(inflate_error(decoder, &error));
            }
        }
        Ok(())
    }

    /// Returns the complete body and its charge.
    pub(super) fn end(self) -> Result<(Vec<u8>, Charge), ApiError> {
        let collected = match self {
            Self::Plain(collected) => collected,
            Self::Gzip(mut decoder) => {
                if let Err(error) = decoder.try_finish() {
                    return Err(inflate_error(&mut decoder, &error));
                }
                decoder.finish().map_err(|error| not_gzip(&error))?
            }
        };
        Ok((collected.bytes, collected.holding.charge()))
    }
}

/// Returns why a body was not inflated: it is too large, or it is not gzip.
fn inflate_error(decoder: &mut MultiGzDecoder<BodyBuffer>, error: &io::Error) -> ApiError {
    let refused = decoder.get_mut().refused.take();
    refused.unwrap_or_else(|| not_gzip(error))
}

fn not_gzip(error: &io::Error) -> ApiError {
    let message = format!(
        "the request's body must be gzip, as `Content-Encoding` says: {error}. Send it as a whole, or plain"
    );
    ApiError::new(ErrorKind::Syntax, message)
}

impl Budget {
    /// Creates a budget of `most` bytes; the gauge `held` shows the bytes in use.
    pub(crate) fn new(most: usize, held: Gauge) -> Self {
        let first = most / FIRST_SHARE;
        let share = |bytes: usize| Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        Self {
            first: share(first),
            rest: share(most - first),
            held,
            most,
        }
    }

    /// Starts accounting for a body, with no bytes yet.
    pub(crate) fn hold(&self) -> Holding {
        Holding {
            budget: self.clone(),
            bytes: 0,
            permits: Vec::new(),
        }
    }

    /// Fails if a body of this size would be refused now, so that it need not be sent.
    pub(crate) fn check(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes.saturating_sub(FIRST_BYTES) > self.rest.available_permits() {
            return Err(self.exhausted());
        }
        Ok(())
    }

    fn exhausted(&self) -> ApiError {
        let most = self.most;
        let message = format!(
            "Model is overloaded: the bodies of requests that wait to be tokenized have reached \
             {most} bytes"
        );
        ApiError::new(ErrorKind::Overloaded, message).retry(RETRY)
    }
}

impl Holding {
    /// Adds `more` bytes, or refuses the body.
    pub(crate) fn add(&mut self, more: usize) -> Result<(), ApiError> {
        let first = FIRST_BYTES.saturating_sub(self.bytes).min(more);
        self.take(&Arc::clone(&self.budget.first), first)?;
        self.take(&Arc::clone(&self.budget.rest), more - first)?;
        self.bytes += more;
        self.budget.held.inc_by(more as i64);
        Ok(())
    }

    /// Completes the body. Each holder of a part of it keeps a clone of the result.
    pub(crate) fn charge(self) -> Charge {
        Charge::new(self)
    }

    fn take(&mut self, share: &Arc<Semaphore>, bytes: usize) -> Result<(), ApiError> {
        // A permit of zero bytes would prevent the merge below.
        if bytes == 0 {
            return Ok(());
        }
        let refused = || self.budget.exhausted();
        let count = u32::try_from(bytes).map_err(|_| refused())?;
        let permit = Arc::clone(share).try_acquire_many_owned(count);
        let permit = permit.map_err(|_| refused())?;
        match self.permits.last_mut() {
            Some(last) if Arc::ptr_eq(last.semaphore(), share) => last.merge(permit),
            _ => self.permits.push(permit),
        }
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.budget.held.dec_by(self.bytes as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn permits_of_a_body_do_not_grow_with_its_chunks() {
        let budget = Budget::new(8 * MIB, Gauge::default());
        let mut body = budget.hold();
        for _ in 0..2 * FIRST_BYTES {
            body.add(1).unwrap();
        }
        assert!(body.permits.len() <= 2, "{}", body.permits.len());
        let free = budget.rest.available_permits();
        assert_eq!(free, 6 * MIB - FIRST_BYTES);
    }

    #[test]
    fn large_bodies_leave_room_for_small_ones_and_all_is_given_back() {
        let held = Gauge::default();
        let budget = Budget::new(8 * MIB, held.clone());
        let mut large = budget.hold();
        for _ in 0..6 {
            large.add(MIB).unwrap();
        }
        assert_eq!(held.get(), 6 * MIB as i64);
        let mut second = budget.hold();
        let refused = second.add(MIB).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Overloaded);
        assert!(refused.retry_after.is_some());
        drop(second);
        assert!(budget.check(MIB).is_err());
        budget.check(FIRST_BYTES).unwrap();
        let small: Vec<_> = (0..30)
            .map(|_| {
                let mut small = budget.hold();
                small.add(FIRST_BYTES).unwrap();
                small.charge()
            })
            .collect();
        let clones = small.clone();
        drop((large, small));
        assert_eq!(held.get(), 30 * FIRST_BYTES as i64);
        drop(clones);
        assert_eq!(held.get(), 0);
        budget.hold().add(6 * MIB).unwrap();
    }
}
