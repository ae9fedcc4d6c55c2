//! Collects request bodies, plain or gzip. Inflated bytes are limited and charged like those of any
//! other body, so that a small body cannot take much memory.

use std::io::{self, Write};

use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;
use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use penstock_text::Charge;

use crate::budget::Holding;

/// Compressed bytes inflated between two yields to other tasks. They inflate to a few MiB at most.
const AT_ONCE: usize = 4 << 10;

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
