//! Reads a JSON request body; errors name the field at fault.

use std::borrow::Cow;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use http_body::Frame;
use http_body_util::BodyExt;
use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use penstock_text::Charge;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::time::timeout;

use super::App;
use super::body::{BodyBuffer, Coding, too_large};

/// Bodies longer than this many bytes are parsed on the blocking pool, not on the serving threads.
const PARSED_AT_ONCE: usize = 64 << 10;

/// A part of a body.
type BodyFrame = Result<Frame<Bytes>, axum::Error>;

/// How serde's error for lists and objects within each other begins.
const TOO_DEEP: &str = "recursion limit exceeded";
/// Longest list of field names in an error.
const MOST_FIELDS: usize = 16;

/// Reads and parses the body within the configured size and time. Keep the charge for as long as
/// any text of the body is kept.
pub(super) async fn read<T: DeserializeOwned + Send + 'static>(
    request: Request,
    app: &App,
) -> Result<(T, Charge), ApiError> {
    check_media_type(&request)?;
    let (bytes, charge) = read_bytes(request, app).await?;
    Ok((parse_off_thread(bytes, &charge, parse).await??, charge))
}

/// Runs `parse` on a body; a long one is parsed on the blocking pool.
pub(super) async fn parse_off_thread<T: Send + 'static>(
    bytes: Vec<u8>,
    charge: &Charge,
    parse: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes.len() <= PARSED_AT_ONCE {
        return Ok(parse(&bytes));
    }
    let held = charge.clone();
    let parsing = tokio::task::spawn_blocking(move || {
        let parsed = parse(&bytes);
        drop((bytes, held));
        parsed
    });
    let failed = |_| ApiError::new(ErrorKind::Internal, "the server failed to parse this body");
    parsing.await.map_err(failed)
}

/// Reads the body, of any type, within the configured size and time.
pub(super) async fn read_bytes(request: Request, app: &App) -> Result<(Vec<u8>, Charge), ApiError> {
    read_at_most(usize::MAX, request, app).await
}

/// Reads a body of at most `limit` bytes, within the configured size and time.
pub(super) async fn read_at_most(
    limit: usize,
    request: Request,
    app: &App,
) -> Result<(Vec<u8>, Charge), ApiError> {
    let limit = limit.min(app.config.max_body_bytes);
    let within = app.config.body_timeout;
    timeout(within, collect(limit, request, app))
        .await
        .map_err(|_| {
            let seconds = within.as_secs();
            let message = format!("the request's body did not arrive within {seconds} s");
            ApiError::new(ErrorKind::Timeout, message)
        })?
}

/// Returns the first part of a body. Its client has only to send what it has.
async fn first_frame(body: &mut Body, app: &App) -> Result<Option<BodyFrame>, ApiError> {
    let within = app.config.first_byte_timeout;
    timeout(within, body.frame()).await.map_err(|_| {
        let seconds = within.as_secs();
        let message = format!("no byte of the request's body arrived within {seconds} s");
        ApiError::new(ErrorKind::Timeout, message)
    })
}

/// Collects the body's bytes, inflated and charged as they arrive: a declared length alone reserves
/// no memory.
async fn collect(limit: usize, request: Request, app: &App) -> Result<(Vec<u8>, Charge), ApiError> {
    let coding = Coding::from_headers(request.headers())?;
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    app.bodies.check(declared.unwrap_or(0))?;
    let room = declared.unwrap_or(0).min(PARSED_AT_ONCE);
    let mut collected = BodyBuffer::new(limit, room, app.bodies.hold()).with_coding(coding);
    let mut body = request.into_body();
    let mut next = first_frame(&mut body, app).await?;
    while let Some(frame) = next {
        let broken = |error| {
            let message = format!("the request's body is incomplete: {error}");
            ApiError::new(ErrorKind::Syntax, message)
        };
        if let Ok(part) = frame.map_err(broken)?.into_data() {
            collected.add(&part).await?;
        }
        next = body.frame().await;
    }
    collected.end()
}

/// Fails unless the body is declared to be JSON.
pub(super) fn check_media_type(request: &Request) -> Result<(), ApiError> {
    let value = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok());
    let essence = value
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    let essence = Excerpt::new(&essence);
    let message =
        format!("send JSON with the header `Content-Type: application/json`, not `{essence}`");
    Err(ApiError::new(ErrorKind::MediaType, message))
}

/// Parses a complete JSON text. All of it must be UTF-8, also fields that have no effect, which serde skips.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to();
        let message = format!("the body is not JSON: its byte {place} (from 0 on) is not UTF-8");
        ApiError::new(ErrorKind::Syntax, message)
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| explain(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| explain(".", &error))?;
    Ok(value)
}

fn explain(path: &str, error: &serde_json::Error) -> ApiError {
    let message = with_likely_fields(&describe_numbers(&with_excerpt(&error.to_string())));
    let message = message.replacen("unknown variant `", "unknown value `", 1);
    // The path is "?" where a key or a value was expected.
    let path = Some(path).filter(|path| !matches!(*path, "." | "?"));
    let fault = match (path, own_field(&message)) {
        (Some(path), Some(field)) => Some(format!("{path}.{field}")),
        (path, field) => path.or(field).map(str::to_owned),
    };
    let param = fault.map(|path| Excerpt::new(&path).to_string());
    let too_deep = message.starts_with(TOO_DEEP);
    let message = message.replacen(TOO_DEEP, "nested more than 127 levels deep", 1);
    let (kind, start) = match error.classify() {
        Category::Data => (ErrorKind::Validation, ""),
        _ if too_deep => (ErrorKind::Syntax, "the body is not accepted: "),
        _ => (ErrorKind::Syntax, "the body is not JSON: "),
    };
    let message = match &param {
        Some(path) => format!("{start}`{path}`: {message}"),
        None => format!("{start}{message}"),
    };
    ApiError {
        param: param.map(Cow::Owned),
        ..ApiError::new(kind, message)
    }
}

/// Returns the field that is unknown, duplicate or missing: the path ends at its object.
fn own_field(message: &str) -> Option<&str> {
    let named = ["unknown field `", "duplicate field `", "missing field `"];
    let rest = named.iter().find_map(|start| message.strip_prefix(start))?;
    rest.split_once('`').map(|(field, _)| field)
}

/// Replaces the names of Rust's number types by ranges.
fn describe_numbers(message: &str) -> String {
    const NUMBERS: [(&str, &str); 6] = [
        ("u32", "a whole number from 0 to 4294967295"),
        ("u64", "a whole number from 0 to 18446744073709551615"),
        ("usize", "a whole number, 0 or more"),
        ("i32", "a whole number from -2147483648 to 2147483647"),
        (
            "i64",
            "a whole number from -9223372036854775808 to 9223372036854775807",
        ),
        ("f32", "a number"),
    ];
    let named = message
        .rsplit_once(", expected ")
        .and_then(|(found, rest)| {
            let (name, place) = rest.split_once(' ')?;
            let (_, words) = NUMBERS.into_iter().find(|(number, _)| *number == name)?;
            Some(format!("{found}, expected {words} {place}"))
        });
    named.unwrap_or_else(|| message.to_owned())
}

/// Replaces a long list of expected fields by those that resemble the unknown one.
fn with_likely_fields(message: &str) -> String {
    let parts = message.strip_prefix("unknown field `").and_then(|rest| {
        let (given, rest) = rest.split_once("`, expected one of ")?;
        let (list, place) = rest.rsplit_once(" at line ")?;
        let fields: Vec<&str> = list
            .split(", ")
            .map(|field| field.trim_matches('`'))
            .collect();
        (fields.len() > MOST_FIELDS).then_some((given, fields, place))
    });
    let Some((given, fields, place)) = parts else {
        return message.to_owned();
    };
    let alike = |field: &&&str| strsim::jaro_winkler(given, field) > 0.85;
    let alike: Vec<_> = fields
        .iter()
        .filter(alike)
        .map(|field| format!("`{field}`"))
        .collect();
    let meant = match alike.as_slice() {
        [] => String::new(),
        names => format!("did you mean {}? ", names.join(" or ")),
    };
    format!("unknown field `{given}` at line {place}: {meant}/docs lists all fields")
}

/// Cuts the string that serde quotes, which may be as long as the body, to an excerpt.
fn with_excerpt(message: &str) -> String {
    let quotes = [
        ("string \"", "\", expected "),
        ("unknown variant `", "`, expected "),
        ("unknown field `", "`, expected "),
        ("unknown field `", "`, there are no fields"),
    ];
    let found = quotes.into_iter().find_map(|(open, close)| {
        let start = message.find(open)? + open.len();
        // The last match: the quoted string itself may contain this text.
        let end = message.rfind(close).filter(|end| *end >= start)?;
        Some((start, end))
    });
    match found {
        None => message.to_owned(),
        Some((start, end)) => {
            let excerpt = Excerpt::new(&message[start..end]);
            format!("{}{excerpt}{}", &message[..start], &message[end..])
        }
    }
}
