//! `/v1/responses`: a request has the whole conversation, or goes on from a stored response.

mod answer;
mod asked;
mod conversation;
mod kept;
mod kept_items;
mod store;
mod stream;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use self::answer::{InputTokens, ResponseObject, Status, Told};
use self::asked::Asked;
use self::conversation::turns;
pub(crate) use self::kept::{
    __path_delete_response, __path_input_items, __path_stored_response, delete_response,
    input_items, stored_response,
};
use self::kept::{Earlier, Keeping};
pub(crate) use self::store::ResponseStore;
use self::stream::ResponseTeller;
use super::chat::{bound, offer, template_variables};
use super::wire::items::Item;
use super::wire::responses::{FLAT_FIELDS, ResponsesRequest};
use super::wire::{Common, Delivery, ErrorBody};
use super::{check_model, unix_time};
use crate::chat::Chat;
use crate::chat::{EFFORT, Variable};
use crate::engine::types::Guide;
use crate::error::ApiError;
use crate::generation::Generator;
use crate::http::blocks::BlockStream;
use crate::http::error::OpenAiError;
use crate::http::ids::unguessable;
use crate::http::reading::{Offered, read_offer};
use crate::http::{App, facts, json, sse};
use crate::tools::Tool;
use crate::validate::{FieldNames, GenerateInput, Prompt};

/// Answers a conversation of items.
#[utoipa::path(
    post, path = "/v1/responses", tag = "openai", request_body = ResponsesRequest,
    responses(
        (status = 200, body = ResponseObject),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub(crate) async fn responses(
    State(app): State<App>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (mut body, charge): (ResponsesRequest, _) = json::read(request, &app).await?;
    body.check()?;
    body.settle_format()?;
    let newer = ("max_output_tokens", body.max_output_tokens);
    let bound = bound(body.max_tokens, newer)?;
    let wanted = body.wanted()?;
    let Common {
        model,
        mut parameters,
        delivery,
    } = body.common(bound.tokens)?;
    parameters.wanted = wanted;
    check_model(&app, model.as_deref())?;
    let asked = Asked::of(&body, &parameters, charge.clone());
    // Held until the prompt is token ids.
    let earlier = Earlier::of(&app, body.previous_response_id.as_deref())?;
    let keeping = Keeping::of(&app.responses, &body, &earlier)?;
    let guide = parameters.guide.take();
    let (chat, guide) = conversation(&app.generator, earlier.items()?, body, guide)?;
    parameters.guide = guide;
    let input = GenerateInput {
        prompt: Prompt::Chat(chat),
        parameters,
        names: FieldNames::RESPONSES.with_bound(bound.name),
        charge,
    };
    let generation = app.generator.generate(input).await.map_err(in_our_words)?;
    drop(earlier);
    let stream = delivery != Delivery::Whole;
    let told = begin(&app, keeping.is_some());
    let teller = ResponseTeller::new(told, asked, keeping, &generation, stream);
    if stream {
        let headers = facts::stream_headers(&app, std::slice::from_ref(&generation));
        let events = BlockStream::new(generation, teller);
        return Ok((headers, sse::respond(events, app.config.keep_alive)).into_response());
    }
    let (generation, teller) = BlockStream::new(generation, teller).run().await?;
    let mut headers = facts::whole_headers(&app, std::slice::from_ref(&generation));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    Ok((headers, teller.body().freeze()).into_response())
}

/// Counts the tokens of a conversation as `/v1/responses` would read it.
#[utoipa::path(
    post, path = "/v1/responses/input_tokens", tag = "openai", request_body = ResponsesRequest,
    responses((status = 200, body = InputTokens), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn input_tokens(
    State(app): State<App>,
    request: Request,
) -> Result<Json<InputTokens>, OpenAiError> {
    let (body, charge): (ResponsesRequest, _) = json::read(request, &app).await?;
    body.check()?;
    check_model(&app, body.model.as_deref())?;
    let earlier = Earlier::of(&app, body.previous_response_id.as_deref())?;
    let (chat, _) = conversation(&app.generator, earlier.items()?, body, None)?;
    let names = FieldNames::RESPONSES;
    let counted = app.generator.tokenize_chat(chat, names, charge).await;
    let (_, tokens) = counted.map_err(in_our_words)?;
    Ok(Json(InputTokens::of(tokens.len())))
}

/// The conversation after `earlier`, and the guide to its answer: `guide`, or what tools make of it.
fn conversation(
    generator: &Generator,
    earlier: Vec<Item>,
    body: ResponsesRequest,
    guide: Option<Box<Guide>>,
) -> Result<(Chat, Option<Box<Guide>>), ApiError> {
    let tools = body.tools.unwrap_or_default();
    let offer = offer(
        tools.into_iter().map(Tool::from).collect(),
        body.tool_choice.map(|choice| choice.value.0),
        (body.parallel_tool_calls, FLAT_FIELDS),
    )?;
    // A format is that of an answer's text: one of nothing but calls has none.
    let forced = offer.as_ref().is_some_and(crate::tools::Offer::forces);
    let of_text = ["text.format", "response_format"];
    let guide = guide.filter(|guide| !(forced && of_text.contains(&guide.field)));
    let Offered {
        tools,
        reading,
        guide,
    } = read_offer((offer.as_ref(), FLAT_FIELDS), generator, guide)?;
    let thinks = generator.thought_format().is_some();
    let effort = body.reasoning.and_then(|reasoning| reasoning.effort);
    let verbosity = body.text.and_then(|text| text.verbosity);
    let special = [
        effort.map(|effort| Variable::effort(&effort, thinks)),
        verbosity.map(|verbosity| Variable::verbosity(&verbosity)),
    ];
    let variables = body.chat_template_kwargs.map(template_variables);
    let (messages, turn) = turns(body.instructions, earlier, body.input)?;
    let chat = Chat {
        messages,
        turn,
        tools,
        variables: variables.transpose()?,
        special: special.into_iter().flatten().collect(),
        reading,
        ..Chat::default()
    };
    Ok((chat, guide))
}

/// Rules speak of fields by the names that chats have for them.
fn in_our_words(error: ApiError) -> ApiError {
    let prompt = FieldNames::RESPONSES.prompt;
    let error = error.renamed(EFFORT, "reasoning.effort");
    let error = error.renamed("verbosity", "text.verbosity");
    let error = error.renamed("messages", prompt);
    match error.param.as_deref() {
        Some(param) if param == prompt => ApiError {
            param: Some("input".into()),
            ..error
        },
        _ => error,
    }
}

fn begin(app: &App, store: bool) -> Told {
    Told {
        id: unguessable("resp_"),
        object: "response",
        created_at: unix_time(),
        completed_at: None,
        status: Status::InProgress,
        error: None,
        incomplete_details: None,
        model: app.config.model_id.clone(),
        output: Vec::new(),
        store,
        usage: None,
    }
}
