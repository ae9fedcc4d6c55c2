//! Routes of TGI and vLLM about tokens, and vLLM's routes about the server.

pub(super) mod wire;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use penstock_request::error::ApiError;
use penstock_request::validate::{self, FieldNames};
use penstock_text::Charge;
use penstock_text::tokenize::SpecialTokens;
use serde::Deserialize;
use serde::de::IgnoredAny;

use self::wire::{
    ChatTokens, DetokenizeRequest, DetokenizeResponse, Load, SimpleToken, Subject, TokenCount,
    TokenizeRequest, TokenizeResponse, TokenizerInfo, Version,
};
use super::error::{ErrorResponse, NativeError, OpenAiError};
use super::openai::{conversation, wire::ErrorBody, wire::chat::ChatRequest};
use super::{App, json};

/// The fields that decide whether the errors of `/tokenize` have vLLM's or TGI's format.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Dialect {
    prompt: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
}

/// Tokenizes a text or a conversation. With `inputs`, as in TGI, returns tokens and their offsets;
/// with `prompt` or `messages`, as in vLLM, returns the count and the ids.
#[utoipa::path(
    post, path = "/tokenize", tag = "tokens", request_body = TokenizeRequest,
    responses((status = 200, body = TokenizeResponse), (status = "4XX", body = ErrorResponse))
)]
pub(super) async fn tokenize(State(app): State<App>, request: Request) -> Response {
    let read = async {
        json::check_media_type(&request)?;
        json::read_bytes(request, &app).await
    };
    let (bytes, charge) = match read.await {
        Ok(read) => read,
        Err(error) => return NativeError::from(error).into_response(),
    };
    let read = |bytes: &[u8]| {
        let dialect: Dialect = json::parse(bytes).unwrap_or_default();
        (dialect, json::parse::<TokenizeRequest>(bytes))
    };
    let (dialect, body) = match json::parse_off_thread(bytes, &charge, read).await {
        Ok(read) => read,
        Err(error) => return NativeError::from(error).into_response(),
    };
    let answer = async { tokens(&app, body?, charge).await };
    match answer.await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) if dialect.prompt.is_some() || dialect.messages.is_some() => {
            OpenAiError::from(error).into_response()
        }
        Err(error) => NativeError::from(error).into_response(),
    }
}

async fn tokens(
    app: &App,
    body: TokenizeRequest,
    charge: Charge,
) -> Result<TokenizeResponse, ApiError> {
    let model = body.model.clone();
    let (special, strs) = (body.add_special_tokens, body.return_token_strs);
    let (generator, subject) = (&app.generator, body.into_subject()?);
    app.check_model(model.as_deref())?;
    let ids = match subject {
        Subject::Inputs(text) if text.is_empty() => {
            return Err(ApiError::validation("inputs", "`inputs` cannot be empty"));
        }
        Subject::Inputs(text) => {
            let pieces = generator.tokenize(text, charge).await?.into_iter();
            return Ok(TokenizeResponse::Pieces(
                pieces.map(SimpleToken::from).collect(),
            ));
        }
        Subject::Prompt(text) => {
            let special = special_tokens(special.unwrap_or(true));
            generator
                .encode((text, FieldNames::COMPLETIONS), special, charge)
                .await?
        }
        Subject::Messages(chat) => {
            let (chat, _) = conversation(generator, *chat, None)?;
            let special = special_tokens(special.unwrap_or(false));
            generator
                .encode_chat((chat, FieldNames::CHAT), special, charge)
                .await?
        }
    };
    let vocabulary = &generator.model_text().vocabulary;
    let strs = (strs == Some(true)).then(|| ids.iter().map(|&id| vocabulary.token(id)).collect());
    Ok(TokenizeResponse::Count(TokenCount {
        count: ids.len(),
        max_model_len: generator.token_limits()?.max_total,
        tokens: ids,
        token_strs: strs,
    }))
}

fn special_tokens(add: bool) -> SpecialTokens {
    if add {
        SpecialTokens::Add
    } else {
        SpecialTokens::AsIs
    }
}

/// Returns the prompt of a conversation, as text and tokens.
#[utoipa::path(
    post, path = "/chat_tokenize", tag = "native", request_body = ChatRequest,
    responses((status = 200, body = ChatTokens), (status = "4XX", body = ErrorResponse))
)]
pub(super) async fn chat_tokenize(
    State(app): State<App>,
    request: Request,
) -> Result<Json<ChatTokens>, NativeError> {
    let (mut body, charge): (ChatRequest, _) = json::read(request, &app).await?;
    body.check()?;
    app.check_model(body.model.take().as_deref())?;
    let (chat, _) = conversation(&app.generator, body, None)?;
    let (templated_text, pieces) = app
        .generator
        .tokenize_chat(
            chat,
            FieldNames {
                dialect: validate::Dialect::Native,
                ..FieldNames::CHAT
            },
            charge,
        )
        .await?;
    Ok(Json(ChatTokens {
        tokenize_response: pieces.into_iter().map(SimpleToken::from).collect(),
        templated_text,
    }))
}

/// Returns the text of tokens, special tokens included.
#[utoipa::path(
    post, path = "/detokenize", tag = "tokens", request_body = DetokenizeRequest,
    responses((status = 200, body = DetokenizeResponse), (status = "4XX", body = ErrorBody))
)]
pub(super) async fn detokenize(
    State(app): State<App>,
    request: Request,
) -> Result<Json<DetokenizeResponse>, OpenAiError> {
    let (body, charge): (DetokenizeRequest, _) = json::read(request, &app).await?;
    app.check_model(body.model.as_deref())?;
    let prompt = app.generator.decode(body.tokens, charge).await?;
    Ok(Json(DetokenizeResponse { prompt }))
}

/// Returns the configuration of the model's tokenizer.
#[utoipa::path(
    get, path = "/tokenizer_info", tag = "tokens", responses((status = 200, body = TokenizerInfo))
)]
pub(super) async fn tokenizer_info(State(app): State<App>) -> Json<TokenizerInfo> {
    /// The class of most fast tokenizers; all of them can be loaded as this class.
    const CLASS: &str = "PreTrainedTokenizerFast";
    let text = app.generator.model_text();
    let config = text.tokenizer_config.iter();
    let entries =
        config.filter(|(name, _)| !["tokenizer_class", "chat_template"].contains(&name.as_str()));
    let class = text.tokenizer_config.get("tokenizer_class");
    let class = class.and_then(serde_json::Value::as_str);
    let template = text.chat_template.as_ref();
    Json(TokenizerInfo {
        tokenizer_class: class.unwrap_or(CLASS).to_owned(),
        chat_template: template.map(|template| template.source().to_owned()),
        more: entries.map(|(k, v)| (k.clone(), v.clone())).collect(),
    })
}

/// Returns the server's version.
#[utoipa::path(
    get, path = "/version", tag = "operations", responses((status = 200, body = Version))
)]
pub(super) async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// Returns the number of requests that wait or run.
#[utoipa::path(get, path = "/load", tag = "operations", responses((status = 200, body = Load)))]
pub(super) async fn load(State(app): State<App>) -> Json<Load> {
    Json(Load {
        server_load: app.generator.metrics().open_requests(),
    })
}
