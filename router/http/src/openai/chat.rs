//! `/v1/chat/completions`.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::response::Response;
use penstock_request::error::{ApiError, Excerpt};
use penstock_request::grammar_spec::OutputConstraint;
use penstock_request::validate::{FieldNames, Parameters};
use penstock_text::chat::{Chat, GenerationPrompt};
use penstock_text::generation::Generator;
use penstock_text::{GenerateInput, Prompt};
use serde::de::IgnoredAny;

use super::wire::answer::{
    AssistantMessage, ChatChoice, ChatCompletion, FunctionCall, ToolCall, Usage,
};
use super::wire::chat::{ChatRequest, Message};
use super::wire::{Common, ErrorBody};
use super::{ChoiceOutput, ChunkKind, FINGERPRINT, ResponseMeta, ResponseOptions, respond};
use crate::error::OpenAiError;
use crate::parsed_output::{ToolPlan, plan_tools};
use crate::strict::JsonText;
use crate::{App, json};

/// Generates the next message of a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses(
        (status = 200, body = ChatCompletion),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub(crate) async fn chat(
    State(app): State<App>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (mut body, charge): (ChatRequest, _) = json::read(request, &app).await?;
    body.check()?;
    body.drop_unused_format();
    let newer = ("max_completion_tokens", body.max_completion_tokens);
    let token_limit = token_limit(body.max_tokens, newer)?;
    let logprob_request = body.logprob_request()?;
    let Common {
        model,
        parameters,
        delivery,
    } = body.common(token_limit.tokens, &app.generator.model_text().defaults)?;
    app.check_model(model.as_deref())?;
    let (chat, constraint) = conversation(&app.generator, body, parameters.constraint)?;
    let input = GenerateInput {
        prompt: Prompt::Chat(Box::new(chat)),
        parameters: Parameters {
            logprob_request,
            constraint,
            ..parameters
        },
        names: FieldNames::CHAT.with_bound(token_limit.name),
        charge,
    };
    let choices = input.parameters.choices;
    let generations = app.generator.generate_all(input).await?;
    let options = ResponseOptions {
        kind: ChunkKind::Chat,
        delivery,
        choices,
    };
    Ok(respond(&app, options, generations, whole).await?)
}

fn whole(meta: ResponseMeta, (mut answers, usage): (Vec<ChoiceOutput>, Usage)) -> ChatCompletion {
    let mut prompt_logprobs_of_choices = answers
        .iter_mut()
        .map(|answer| answer.prompt_logprobs.take());
    let prompt_logprobs = prompt_logprobs_of_choices.next().flatten();
    drop(prompt_logprobs_of_choices);
    let prompt_token_ids = answers
        .first_mut()
        .and_then(|answer| answer.ids.as_mut()?.take_prompt());
    let choice = |(index, mut answer): (usize, ChoiceOutput)| ChatChoice {
        index,
        token_ids: answer.ids.as_mut().map(|ids| ids.take()),
        finish_reason: answer.reason,
        stop_reason: answer.stop_reason.take(),
        logprobs: answer.logprobs.take(),
        message: message(answer),
    };
    let ResponseMeta { id, created, model } = meta;
    ChatCompletion {
        id,
        object: "chat.completion",
        created,
        model,
        system_fingerprint: FINGERPRINT,
        choices: answers.into_iter().enumerate().map(choice).collect(),
        usage,
        prompt_logprobs,
        prompt_token_ids,
    }
}

fn message(answer: ChoiceOutput) -> AssistantMessage {
    let calls = answer.calls.into_iter().map(|call| ToolCall {
        id: call.id,
        r#type: "function",
        function: FunctionCall {
            name: call.name,
            arguments: call.arguments,
        },
    });
    let mut tool_calls: Vec<_> = calls.collect();
    let content = Some(answer.text).filter(|text| !text.is_empty() || tool_calls.is_empty());
    // With the legacy `functions` there is at most one call.
    let function = tool_calls
        .pop_if(|_| answer.older)
        .map(|call| call.function);
    let reasoning = Some(answer.reasoning).filter(|text| !text.is_empty());
    AssistantMessage {
        role: "assistant",
        content,
        function_call: function,
        reasoning_content: reasoning.clone(),
        reasoning,
        tool_calls,
    }
}

/// The limit of output tokens.
pub(super) struct TokenLimit {
    pub(super) tokens: Option<u32>,
    /// The field that set it, if any.
    pub(super) name: Option<&'static str>,
}

/// Returns the limit that `max_tokens` and its newer name set; fails if they differ.
pub(super) fn token_limit(
    old: Option<u32>,
    (name, new): (&'static str, Option<u32>),
) -> Result<TokenLimit, ApiError> {
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let rule = format!(
                "`max_tokens` and `{name}` mean the same and must not differ. Given: {old} and {new}"
            );
            Err(ApiError::validation(name, rule))
        }
        (old, None) => Ok(TokenLimit {
            tokens: old,
            name: old.map(|_| "max_tokens"),
        }),
        (_, new) => Ok(TokenLimit {
            tokens: new,
            name: Some(name),
        }),
    }
}

/// Parses a body of this route for the Python package. Returns its conversation, and `parameters`
/// with the constraint that follows from the body's tools. Sampling parameters in the body are
/// ignored.
///
/// # Errors
/// All errors of a request's conversation and tools.
pub fn parse_chat_request(
    body: &str,
    parameters: Parameters,
    generator: &Generator,
) -> Result<(Chat, Parameters), ApiError> {
    let body: ChatRequest = json::parse(body.as_bytes())?;
    let (chat, constraint) = conversation(generator, body, parameters.constraint)?;
    let parameters = Parameters {
        constraint,
        ..parameters
    };
    Ok((chat, parameters))
}

/// Returns the conversation, and the grammar of the output: `grammar`, combined with the tools.
pub(crate) fn conversation(
    generator: &Generator,
    mut body: ChatRequest,
    grammar: Option<OutputConstraint>,
) -> Result<(Chat, Option<OutputConstraint>), ApiError> {
    let requested = body.take_tools()?;
    let legacy = requested.legacy;
    let tool_set = requested.into_tool_set()?;
    let ToolPlan {
        tools,
        mut parser_options,
        grammar,
    } = plan_tools(tool_set.as_ref(), generator, grammar)?;
    parser_options.legacy_function_call = legacy;
    parser_options.reasoning_display = body.reasoning_visibility();
    let special = body.special_variables(generator.reasoning_format().is_some())?;
    let variables = body.chat_template_kwargs.take();
    let variables = variables.map(template_variables).transpose()?;
    let messages = Message::into_turns(body.messages)?;
    let said = messages.last().filter(|m| m.role == "assistant");
    let open = said.is_some_and(|m| m.content.is_some() && m.tool_calls.is_none());
    let echoed = said.filter(|_| body.echo == Some(true));
    let echoed = echoed.and_then(|m| m.content.clone());
    let continues = body
        .continue_final_message
        .unwrap_or(open && body.add_generation_prompt != Some(true));
    let turn = match (continues, body.add_generation_prompt) {
        (true, Some(true)) => {
            let rule = "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(ApiError::validation("continue_final_message", rule));
        }
        (true, _) => GenerationPrompt::ContinueFinalMessage,
        (false, Some(false)) => GenerationPrompt::Omit,
        (false, _) => GenerationPrompt::Add,
    };
    let chat = Chat {
        messages,
        generation_prompt: turn,
        tools,
        tool_prompt: body.tool_prompt,
        template: body.chat_template,
        variables,
        optional_variables: special,
        parser_options,
        echo_prefix: echoed,
        ..Chat::default()
    };
    Ok((chat, grammar))
}

/// Variables that the server itself passes to the chat template.
pub(crate) const OWN_VARIABLES: [&str; 4] =
    ["messages", "tools", "documents", "add_generation_prompt"];

pub(super) fn template_variables(json: JsonText) -> Result<String, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let json = json.into_string();
    let Ok(map) = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(&json) else {
        let rule = format!(
            "`{NAME}` must be a JSON object. Given: {}",
            Excerpt::new(&json)
        );
        return Err(ApiError::validation(NAME, rule));
    };
    match OWN_VARIABLES
        .into_iter()
        .find(|name| map.contains_key(*name))
    {
        Some(name) => {
            let rule = format!("`{NAME}` cannot hold `{name}`: it is a field of the request");
            Err(ApiError::validation(NAME, rule))
        }
        None => Ok(json),
    }
}
