//! `/v1/responses`: a request has the whole conversation, or continues a stored response.

mod conversation;
mod request_echo;
mod response_object;
mod store;
mod stored_items;
mod stored_responses;
mod stream;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use penstock_request::error::ApiError;
use penstock_request::grammar_spec::OutputConstraint;
use penstock_request::validate::{FieldNames, Parameters};
use penstock_text::chat::Chat;
use penstock_text::chat::{REASONING_EFFORT, TemplateVariable};
use penstock_text::generation::Generator;
use penstock_text::tool_parsers::{Tool, ToolSet};
use penstock_text::{GenerateInput, Prompt};

use self::conversation::turns;
use self::request_echo::RequestEcho;
use self::response_object::{InputTokens, ResponseObject, ResponseState, Status};
pub(crate) use self::store::ResponseStore;
pub(crate) use self::stored_responses::{
    __path_delete_response, __path_input_items, __path_stored_response, delete_response,
    input_items, stored_response,
};
use self::stored_responses::{PendingStore, PreviousConversation};
use self::stream::ResponseWriter;
use super::chat::{template_variables, token_limit};
use super::unix_time;
use super::wire::items::Item;
use super::wire::requested_tools::RequestedTools;
use super::wire::responses::{FLAT_FIELDS, ResponsesRequest};
use super::wire::{Common, Delivery, ErrorBody};
use crate::blocks::BlockStream;
use crate::error::OpenAiError;
use crate::ids::unguessable;
use crate::parsed_output::{ToolPlan, plan_tools};
use crate::{App, json, response_headers, sse};

/// Generates a response to a conversation of items.
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
    body.resolve_text_format()?;
    let newer = ("max_output_tokens", body.max_output_tokens);
    let token_limit = token_limit(body.max_tokens, newer)?;
    let logprob_request = body.logprob_request()?;
    let Common {
        model,
        parameters,
        delivery,
    } = body.common(token_limit.tokens, &app.generator.model_text().defaults)?;
    app.check_model(model.as_deref())?;
    let echo = RequestEcho::new(&body, &parameters, charge.clone());
    // Held until the prompt is tokenized.
    let earlier = PreviousConversation::load(&app, body.previous_response_id.as_deref())?;
    let pending_store = PendingStore::new(&app.responses, &body, &earlier)?;
    let constraint = parameters.constraint;
    let (chat, constraint) = conversation(&app.generator, earlier.items()?, body, constraint)?;
    let input = GenerateInput {
        prompt: Prompt::Chat(Box::new(chat)),
        parameters: Parameters {
            logprob_request,
            constraint,
            ..parameters
        },
        names: FieldNames::RESPONSES.with_bound(token_limit.name),
        charge,
    };
    let generation = app
        .generator
        .generate(input)
        .await
        .map_err(with_responses_field_names)?;
    drop(earlier);
    let stream = delivery != Delivery::Whole;
    let state = begin(&app, pending_store.is_some());
    let writer = ResponseWriter::new(state, echo, pending_store, &generation, stream);
    if stream {
        let headers = response_headers::stream_headers(&app, std::slice::from_ref(&generation));
        let events = BlockStream::new(generation, writer);
        return Ok((headers, sse::respond(events, app.config.keep_alive)).into_response());
    }
    let (generation, writer) = BlockStream::new(generation, writer).run().await?;
    let mut headers = response_headers::whole_headers(&app, std::slice::from_ref(&generation));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    Ok((headers, writer.body().freeze()).into_response())
}

/// Counts the prompt tokens of a conversation, as `/v1/responses` would render it.
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
    app.check_model(body.model.as_deref())?;
    let earlier = PreviousConversation::load(&app, body.previous_response_id.as_deref())?;
    let (chat, _) = conversation(&app.generator, earlier.items()?, body, None)?;
    let names = FieldNames::RESPONSES;
    let counted = app.generator.tokenize_chat(chat, names, charge).await;
    let (_, tokens) = counted.map_err(with_responses_field_names)?;
    Ok(Json(InputTokens::new(tokens.len())))
}

/// Returns the conversation after `earlier`, and the grammar of the output: `grammar`, combined
/// with the tools.
fn conversation(
    generator: &Generator,
    earlier: Vec<Item>,
    body: ResponsesRequest,
    grammar: Option<OutputConstraint>,
) -> Result<(Chat, Option<OutputConstraint>), ApiError> {
    let tools = body.tools.unwrap_or_default();
    let requested = RequestedTools {
        tools: tools.into_iter().map(Tool::from).collect(),
        choice: body.tool_choice.map(|choice| choice.value.0),
        parallel: body.parallel_tool_calls,
        fields: FLAT_FIELDS,
        legacy: false,
    };
    let tool_set = requested.into_tool_set()?;
    // A format applies to text: an output that is only calls has none.
    let forced = tool_set.as_ref().is_some_and(ToolSet::forces_call);
    let of_text = ["text.format", "response_format"];
    let grammar = grammar.filter(|grammar| !(forced && of_text.contains(&grammar.field)));
    let ToolPlan {
        tools,
        parser_options,
        grammar,
    } = plan_tools(tool_set.as_ref(), generator, grammar)?;
    let thinks = generator.reasoning_format().is_some();
    let effort = body.reasoning.and_then(|reasoning| reasoning.effort);
    let verbosity = body.text.and_then(|text| text.verbosity);
    let special = [
        effort.map(|effort| TemplateVariable::effort(&effort, thinks)),
        verbosity.map(|verbosity| TemplateVariable::verbosity(&verbosity)),
    ];
    let variables = body.chat_template_kwargs.map(template_variables);
    let (messages, turn) = turns(body.instructions, earlier, body.input)?;
    let chat = Chat {
        messages,
        generation_prompt: turn,
        tools,
        variables: variables.transpose()?,
        optional_variables: special.into_iter().flatten().collect(),
        parser_options,
        ..Chat::default()
    };
    Ok((chat, grammar))
}

/// Replaces the field names of chats, which validation uses, by those of this route.
fn with_responses_field_names(error: ApiError) -> ApiError {
    let prompt = FieldNames::RESPONSES.prompt;
    let error = error.renamed(REASONING_EFFORT, "reasoning.effort");
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

fn begin(app: &App, store: bool) -> ResponseState {
    ResponseState {
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
