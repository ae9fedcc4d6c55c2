//! JSON of the OpenAI routes.

pub(crate) mod answer;
pub(crate) mod chat;
mod common;
pub(crate) mod completions;
pub(crate) mod items;
pub(crate) mod metadata;
pub(crate) mod one_or_many;
pub(crate) mod requested_tools;
pub(crate) mod responses;
mod token_ids;
pub(crate) mod tools;

pub(crate) use self::common::{Common, Delivery, NEUTRAL, StreamUsage};

/// An error.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
#[allow(dead_code, reason = "written by http::error; here for the schema")]
pub(crate) struct ErrorBody {
    /// The error's fields.
    pub(crate) error: ErrorFields,
}

/// The fields of an error.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
#[allow(dead_code, reason = "written by http::error; here for the schema")]
pub(crate) struct ErrorFields {
    /// Field, rule and value.
    pub(crate) message: String,
    /// For example `invalid_request_error`.
    pub(crate) r#type: String,
    /// The field at fault, if any.
    pub(crate) param: Option<String>,
    /// For example `model_not_found`.
    pub(crate) code: Option<String>,
}
