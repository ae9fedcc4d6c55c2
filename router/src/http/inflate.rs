//! Bodies as they are collected: plain ones, and those that came compressed. What is inflated is bounded
//! and charged like any other body, so that a few bytes cannot become many.

use std::io::{self, Write};

use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;

use crate::budget::{Charge, Holding};
use crate::error::{ApiError, ErrorKind, Excerpt};

/// Compressed bytes that are inflated before others have their turn: at most some MiB come of them.
const AT_ONCE: usize = 4 << 10;

/// How a body is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Plain,
    Gzip,
}

/// The bytes of a body so far.
pub(super) struct BodyBuffer {
    bytes: Vec<u8>,
    /// Bytes that there may be.
    limit: usize,
    holding: Holding,
    /// Why no more are taken.
    refused: Option<ApiError>,
}

/// The same, of a body that may be compressed.
pub(super) enum BodyDecoder {
    Plain(BodyBuffer),
    Gzip(Box<MultiGzDecoder<BodyBuffer>>),
}

impl Coding {
    /// What the headers say.
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
    /// At most `limit` bytes, with space for `room` from the start.
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
    /// Takes the next bytes that came.
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

    /// The whole body.
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

/// Why a body was not inflated: it is too large, or it is no gzip.
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
