//! Routes of stored responses, and continuing them.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use penstock_text::Charge;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;

use super::response_object::ResponseObject;
use super::store::{ResponseStore, StoredItem, StoredResponse, StoredTurn};
use crate::App;
use crate::error::OpenAiError;
use crate::json;
use crate::openai::wire::ErrorBody;
use crate::openai::wire::items::Item;
use crate::openai::wire::responses::ResponsesRequest;

/// Default number of items per page.
const PAGE: usize = 20;
const LARGEST_PAGE: usize = 100;

/// The conversation that a request continues; empty without `previous_response_id`.
#[derive(Default)]
pub(super) struct PreviousConversation {
    /// The turns, oldest first.
    turns: Vec<Arc<StoredTurn>>,
    /// Charge for the texts read from the turns.
    _charge: Charge,
}

/// The data needed to store a response once it is complete.
pub(super) struct PendingStore {
    store: ResponseStore,
    earlier: Vec<Arc<StoredTurn>>,
    input: Vec<StoredItem>,
}

/// Confirms that a response was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedResponse {
    /// Id of the response.
    id: String,
    /// Always `response`.
    object: &'static str,
    /// Always true.
    deleted: bool,
}

/// The input items of a response.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "written by `Page::to_json`; here for the schema")]
pub(crate) struct InputItemList {
    /// Always `list`.
    object: &'static str,
    /// The items of one page.
    #[schema(value_type = Vec<Object>)]
    data: (),
    /// Id of the first item of the page; null if it is empty.
    first_id: Option<String>,
    /// Id of the last item of the page; null if it is empty.
    last_id: Option<String>,
    /// Whether more items follow.
    has_more: bool,
}

/// Query of a stored response.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct StoredResponseQuery {
    stream: Option<bool>,
}

/// Query of the input items.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Page {
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    order: Order,
}

/// The order of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    #[default]
    Desc,
}

/// Returns a stored response.
#[utoipa::path(
    get, path = "/v1/responses/{id}", tag = "openai",
    params(("id" = String, Path, description = "The response's id")),
    responses((status = 200, body = ResponseObject), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn stored_response(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<StoredResponseQuery>, QueryRejection>,
) -> Result<Response, OpenAiError> {
    let Query(query) = query.map_err(|error| in_query(&error))?;
    if query.stream == Some(true) {
        return Err(ApiError::unsupported("stream", "false").into());
    }
    Ok(as_json(find(&app, id)?.body))
}

/// Deletes a stored response. Responses that continue it keep their conversation.
#[utoipa::path(
    delete, path = "/v1/responses/{id}", tag = "openai",
    params(("id" = String, Path, description = "The response's id")),
    responses((status = 200, body = DeletedResponse), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn delete_response(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeletedResponse>, OpenAiError> {
    let id = readable(id)?;
    if !app.responses.remove(&id) {
        return Err(absent(&id).into());
    }
    Ok(Json(DeletedResponse {
        id,
        object: "response",
        deleted: true,
    }))
}

/// Lists the input items of a stored response, including those of earlier turns.
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "openai",
    params(
        ("id" = String, Path, description = "The response's id"),
        ("after" = Option<String>, Query, description = "The id of the item that the page follows"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "Maximum items of a page; default 20"),
        ("order" = Option<String>, Query, description = "`asc`, or `desc` (default): newest first"),
    ),
    responses((status = 200, body = InputItemList), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn input_items(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Response, OpenAiError> {
    let Query(page) = page.map_err(|error| in_query(&error))?;
    Ok(as_json(page.to_json(&find(&app, id)?)?.into()))
}

fn as_json(body: Bytes) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body).into_response()
}

fn find(app: &App, id: Result<Path<String>, PathRejection>) -> Result<StoredResponse, ApiError> {
    let id = readable(id)?;
    app.responses.get(&id).ok_or_else(|| absent(&id))
}

fn readable(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let unreadable = |_| {
        let message = "the response's id in the path must be percent-encoded UTF-8";
        ApiError::new(ErrorKind::Syntax, message)
    };
    id.map(|Path(id)| id).map_err(unreadable)
}

fn absent(id: &str) -> ApiError {
    let id = Excerpt::new(id);
    let message = format!(
        "Response with id '{id}' not found: it was deleted, evicted from the store \
         (--response-store) or never stored"
    );
    ApiError::new(ErrorKind::NotFound, message)
}

/// The error of a field that needs the store if it is disabled.
fn store_disabled(field: &'static str) -> ApiError {
    let rule = format!(
        "`{field}` is not supported: this server stores no responses (--response-store 0). Leave it out, \
         and send the items of earlier turns in `input`"
    );
    ApiError {
        param: Some(field.into()),
        ..ApiError::new(ErrorKind::Unsupported, rule)
    }
}

fn in_query(error: &QueryRejection) -> ApiError {
    let text = error.body_text();
    ApiError::new(ErrorKind::Syntax, Excerpt::of_message(&text).to_string())
}

impl Page {
    /// Returns the items of this page as JSON.
    fn to_json(&self, response: &StoredResponse) -> Result<String, ApiError> {
        let limit = self.limit.unwrap_or(PAGE);
        if !(1..=LARGEST_PAGE).contains(&limit) {
            let rule = format!("`limit` must be from 1 to {LARGEST_PAGE}. Given: {limit}");
            return Err(ApiError::validation("limit", rule));
        }
        let mut items = answered(response);
        if self.order == Order::Desc {
            items.reverse();
        }
        let start = self.after.as_ref().map(|after| {
            let found = items.iter().position(|item| item.id == *after);
            found.map(|found| found + 1).ok_or_else(|| {
                let after = Excerpt::new(after);
                let rule =
                    format!("`after` must be the id of an item that is listed. Given: `{after}`");
                ApiError::validation("after", rule)
            })
        });
        let rest = &items[start.transpose()?.unwrap_or(0)..];
        let page = &rest[..limit.min(rest.len())];
        let id = |item: Option<&&StoredItem>| Value::from(item.map(|item| item.id.as_str()));
        let data: Vec<&str> = page.iter().map(|item| item.json.as_str()).collect();
        Ok(format!(
            "{{\"object\":\"list\",\"data\":[{}],\"first_id\":{},\"last_id\":{},\"has_more\":{}}}",
            data.join(","),
            id(page.first()),
            id(page.last()),
            rest.len() > page.len()
        ))
    }
}

/// Returns the input items of a response, oldest first: all items except its own output.
fn answered(response: &StoredResponse) -> Vec<&StoredItem> {
    let last = response.turns.len().saturating_sub(1);
    let turns = response.turns.iter().enumerate();
    turns
        .flat_map(|(index, turn)| {
            let own = if index == last { &[][..] } else { &turn.output };
            turn.input.iter().chain(own)
        })
        .collect()
}

impl PreviousConversation {
    /// Loads the conversation that ends with the response `id`.
    pub(super) fn load(app: &App, id: Option<&str>) -> Result<Self, ApiError> {
        let Some(id) = id else {
            return Ok(Self::default());
        };
        if !app.responses.is_enabled() {
            return Err(store_disabled("previous_response_id"));
        }
        let response = app.responses.get(id).ok_or_else(|| {
            let message = format!("`previous_response_id`: {}", absent(id).message);
            let error = ApiError::new(ErrorKind::PreviousResponse, message);
            ApiError {
                param: Some("previous_response_id".into()),
                ..error
            }
        })?;
        let mut texts = app.bodies.hold();
        texts.add(response.turns.iter().map(|turn| turn.bytes()).sum())?;
        Ok(Self {
            turns: response.turns,
            _charge: texts.charge(),
        })
    }

    /// Returns the bytes that the conversation takes.
    pub(super) fn bytes(&self) -> usize {
        self.turns.iter().map(|turn| turn.bytes()).sum()
    }

    /// Parses the items.
    pub(super) fn items(&self) -> Result<Vec<Item>, ApiError> {
        let turns = self.turns.iter();
        let items = turns.flat_map(|turn| turn.input.iter().chain(&turn.output));
        // The server wrote these items: a parse error is not the client's fault.
        let unreadable = |error: ApiError| ApiError::new(ErrorKind::Internal, error.message);
        items
            .map(|item| json::parse(item.json.as_bytes()).map_err(unreadable))
            .collect()
    }
}

impl PendingStore {
    /// Prepares to store the response to `body`; `None` if it is not to be stored.
    pub(super) fn new(
        store: &ResponseStore,
        body: &ResponsesRequest,
        earlier: &PreviousConversation,
    ) -> Result<Option<Self>, ApiError> {
        match body.store {
            Some(true) if !store.is_enabled() => return Err(store_disabled("store")),
            Some(false) => return Ok(None),
            _ if !store.is_enabled() => return Ok(None),
            _ => {}
        }
        let input = StoredItem::all(&body.input);
        let bytes = earlier.bytes() + input.iter().map(StoredItem::bytes).sum::<usize>();
        if bytes <= store.largest() {
            return Ok(Some(Self {
                store: store.clone(),
                earlier: earlier.turns.clone(),
                input,
            }));
        }
        if body.store.is_none() {
            return Ok(None);
        }
        let most = store.largest();
        let rule = format!(
            "`store` must be false for this conversation: it takes {bytes} bytes, and one response may \
             take {most} (an eighth of --response-store)"
        );
        Err(ApiError::validation("store", rule))
    }

    /// Stores a complete response; returns false if it is too large.
    pub(super) fn store(self, id: &str, output: Vec<StoredItem>, body: Bytes) -> bool {
        self.store
            .store(id, (&self.earlier, self.input), (output, body))
    }
}
