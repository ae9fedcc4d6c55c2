//! The fields of beam search, shared by the native and OpenAI routes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use penstock_request::error::ApiError;
use penstock_request::types::{BeamParameters, EarlyStopping};

/// `early_stopping` as clients send it: `true`, `false` or `"never"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireEarlyStopping(EarlyStopping);

/// The beam search fields of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BeamFields {
    pub(super) enabled: Option<bool>,
    pub(super) width: Option<u32>,
    pub(super) length_penalty: Option<f32>,
    pub(super) early_stopping: Option<WireEarlyStopping>,
}

impl BeamFields {
    /// Returns the beam search that is requested, if any; its width defaults to `usual`.
    pub(super) fn beam(self, usual: u32) -> Result<Option<BeamParameters>, ApiError> {
        if self.enabled == Some(true) {
            return Ok(Some(BeamParameters {
                width: self.width.unwrap_or(usual),
                length_penalty: self.length_penalty.unwrap_or(1.0),
                early_stopping: self
                    .early_stopping
                    .map_or_else(Default::default, |early| early.0),
            }));
        }
        let alone = [
            ("beam_width", self.width.is_some()),
            (
                "length_penalty",
                self.length_penalty.is_some_and(|p| p != 1.0),
            ),
            (
                "early_stopping",
                self.early_stopping
                    .is_some_and(|e| e.0 != EarlyStopping::Heuristic),
            ),
        ];
        match alone.iter().find(|(_, given)| *given) {
            Some((name, _)) => {
                let rule = format!("`{name}` is only allowed when `use_beam_search` is true");
                Err(ApiError::validation(name, rule))
            }
            None => Ok(None),
        }
    }
}

impl<'de> Deserialize<'de> for WireEarlyStopping {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EarlyVisitor)
    }
}

struct EarlyVisitor;

impl Visitor<'_> for EarlyVisitor {
    type Value = WireEarlyStopping;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or \"never\"")
    }

    fn visit_bool<E>(self, full: bool) -> Result<WireEarlyStopping, E> {
        Ok(WireEarlyStopping(match full {
            true => EarlyStopping::WhenFull,
            false => EarlyStopping::Heuristic,
        }))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<WireEarlyStopping, E> {
        match text {
            "never" => Ok(WireEarlyStopping(EarlyStopping::Never)),
            other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        }
    }
}
