//! Text in, text events out. Used by every HTTP route and by the Python package.

mod answer;
mod event;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use penstock_request::backend::Backend;
use penstock_request::deadline::Deadline;
use penstock_request::error::{ApiError, ErrorKind};
use penstock_request::grammar_spec::{ExpectedReasoning, GrammarFormat};
use penstock_request::types::SubmitError;
use penstock_request::validate::{TokenLimits, TokenizedPrompt, ValidParameters, ValidRequest};
use penstock_request::{EngineState, Limits};

use self::answer::PendingGeneration;
pub use self::answer::{Generation, PromptOutput};
pub use self::event::{FinishReason, GenerationFacts, TextEnd, TextEvent, TextToken, TokenUsage};
use crate::chat::{Chat, ChatTemplate, GenerationPrompt, TemplateSandbox};
use crate::config::TextConfig;
use crate::detokenize::Detokenizer;
use crate::input::{GenerateInput, Prompt};
use crate::metrics::{RequestTimer, TextMetrics};
use crate::model_text::ModelText;
use crate::tokenize::{self, SpecialTokens, TokenizerPool};
use crate::tool_parsers::{OutputParserOptions, ReasoningFormat, ToolFormat};

/// Why `/ready` fails while a step is overdue.
const STEP_OVERDUE: &str = "the step in progress takes longer than expected";

/// Generates text from prompts. Cheap to clone.
#[derive(Clone)]
pub struct Generator {
    inner: Arc<Inner>,
    backend: Arc<dyn Backend>,
}

struct Inner {
    text: Arc<ModelText>,
    pool: TokenizerPool,
    renderer: TemplateSandbox,
    tool_format: Option<ToolFormat>,
    reasoning_format: Option<ReasoningFormat>,
    config: TextConfig,
    metrics: Arc<TextMetrics>,
}

/// A valid request with what only the text layer needs.
struct TextRequest {
    valid: ValidRequest,
    /// How to parse the output; set for chats.
    parser_options: OutputParserOptions,
    /// Text of the prompt, if echoed.
    echoed: String,
}

/// A request that can start.
struct Prepared {
    timer: RequestTimer,
    request: TextRequest,
    deadline: Option<Deadline>,
}

impl Generator {
    /// Combines an engine with a model's text side; starts the tokenizer threads.
    pub fn new(
        engine: impl Backend,
        model: ModelText,
        config: &TextConfig,
        metrics: Arc<TextMetrics>,
    ) -> Self {
        let pool = TokenizerPool::start(config.tokenizer_threads, config.tokenizer_queue);
        let config = config.clone();
        let template = model.template(true);
        let source = template.map(ChatTemplate::source);
        // If tools are described in the prompt text, so is this call format.
        let in_words = template.is_some_and(|t| !t.knows_tools());
        let in_words = in_words.then_some(ToolFormat::Hermes);
        let tool_format = |source: &str| ToolFormat::from_template(source).or(in_words);
        Self {
            inner: Arc::new(Inner {
                tool_format: config.tool_format.resolve(source, tool_format),
                reasoning_format: config
                    .reasoning_format
                    .resolve(source, ReasoningFormat::from_template),
                text: Arc::new(model),
                pool,
                renderer: TemplateSandbox::new(config.templates.clone()),
                config,
                metrics,
            }),
            backend: Arc::new(engine),
        }
    }

    /// Returns this generator for streams that are polled on the current runtime.
    #[must_use]
    pub fn on_this_runtime(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            backend: self.backend.on_this_runtime(),
        }
    }

    /// Starts a request and returns its first choice; see `generate_all`.
    pub async fn generate(&self, input: GenerateInput) -> Result<Generation, ApiError> {
        Ok(self.generate_all(input).await?.swap_remove(0))
    }

    /// Starts a request and returns all its choices. When this returns, the request is valid,
    /// accepted and prepared. Dropping the future withdraws it.
    pub async fn generate_all(&self, input: GenerateInput) -> Result<Vec<Generation>, ApiError> {
        self.begin(self.prepared(input).await?).await
    }

    /// Like `generate_all`, for several inputs. No request starts before all of them are valid.
    pub async fn generate_batch(
        &self,
        inputs: impl Iterator<Item = GenerateInput>,
    ) -> Result<Vec<Generation>, ApiError> {
        let prepared = try_join_all(inputs.map(|input| self.prepared(input))).await?;
        let pending = try_join_all(prepared.into_iter().map(|request| self.begin(request))).await?;
        Ok(pending.into_iter().flatten().collect())
    }

    async fn prepared(&self, input: GenerateInput) -> Result<Prepared, ApiError> {
        let mut timer = RequestTimer::start(&self.inner.metrics);
        let deadline = deadline(&input);
        let request = self.prepare(input).await;
        let request = request.inspect_err(|e: &ApiError| timer.failed(e.kind))?;
        Ok(Prepared {
            timer,
            request,
            deadline,
        })
    }

    async fn begin(&self, prepared: Prepared) -> Result<Vec<Generation>, ApiError> {
        let Prepared {
            mut timer,
            request,
            deadline,
        } = prepared;
        let pending = PendingGeneration::new(&self.inner.text, &request);
        let engine = request.valid.engine;
        let grammar = engine.grammar.as_ref();
        let grammar = grammar.map(|grammar| grammar.constraint.field);
        let sources = Deadline::scope(deadline, self.backend.submit(engine)).await;
        let sources = sources.map_err(|error| {
            let error = grammar_error(error, grammar);
            timer.failed(error.kind);
            error
        })?;
        pending.count(&mut timer);
        Ok(pending.generations(sources, timer))
    }

    /// Returns the engine's state.
    pub fn state(&self) -> EngineState {
        self.backend.state()
    }

    /// Returns why the engine cannot serve requests: the model is not loaded, no worker can serve,
    /// or the engine drains or has stopped. `None` if it can.
    pub fn unhealthy_reason(&self) -> Option<String> {
        obstacle(&self.state())
    }

    /// Returns why a request sent now would not run at once; `None` if it would.
    pub fn not_ready_reason(&self) -> Option<String> {
        let overdue = || self.backend.overdue().map(|_| STEP_OVERDUE.to_owned());
        self.unhealthy_reason().or_else(overdue)
    }

    /// Returns the engine's limits; `None` until its model is loaded.
    pub fn limits(&self) -> Option<Limits> {
        self.backend.limits()
    }

    /// Returns the limits for prompts and outputs; an error while the model is not loaded.
    pub fn token_limits(&self) -> Result<TokenLimits, ApiError> {
        let limits = self.limits().ok_or_else(|| not_loaded(&self.state()))?;
        let max_total = limits.max_sequence_tokens as usize;
        Ok(TokenLimits::new(
            &self.inner.config.limits,
            max_total,
            limits.vocab_size as usize,
        ))
    }

    /// Returns the model's text side.
    pub fn model_text(&self) -> &ModelText {
        &self.inner.text
    }

    /// Returns the model's format of tool calls; `None` if it writes none.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.inner.tool_format
    }

    /// Returns the model's format of reasoning; `None` if it writes none.
    pub fn reasoning_format(&self) -> Option<ReasoningFormat> {
        self.inner.reasoning_format
    }

    /// Returns the metrics that requests are counted in.
    pub fn metrics(&self) -> &TextMetrics {
        &self.inner.metrics
    }

    /// Adds the server's system prompt, and renders the request's own template if it has one.
    async fn complete(&self, chat: &mut Chat) -> Result<(), ApiError> {
        chat.system.clone_from(&self.inner.config.system_prompt);
        if let Some(source) = &chat.template {
            let own = self.inner.text.chat_template.as_ref();
            let special_tokens = own.map_or(&[][..], |template| template.special_tokens());
            let text = self.inner.renderer.render(chat, source, special_tokens);
            chat.rendered_prompt = Some(text.await?);
        }
        Ok(())
    }

    async fn prepare(&self, input: GenerateInput) -> Result<TextRequest, ApiError> {
        let limits = self.token_limits()?;
        let GenerateInput {
            mut prompt,
            parameters,
            names,
            charge,
        } = input;
        prompt.check(names.prompt)?;
        let parameters = parameters.validate(names, &self.inner.config.limits, limits)?;
        if let Prompt::Chat(chat) = &mut prompt {
            self.complete(chat).await?;
        }
        let text = &self.inner.text;
        let prompt = match prompt {
            // Token-id prompts are detokenized only for echo, and need a tokenizer thread only for
            // texts.
            Prompt::Ids(ids) if !parameters.echo() && !parameters.has_texts() => {
                let prompt = TokenizedPrompt {
                    ids: parameters.fit_prompt(ids)?,
                    end_token_ids: text.eos_ids.clone(),
                    reasoning: ExpectedReasoning::Unknown,
                };
                return parameters.into_request(prompt).map(Into::into);
            }
            prompt => prompt,
        };
        match &prompt {
            Prompt::Text(prompt, _) => parameters.check_length(text.least_tokens(prompt))?,
            Prompt::Infill { prefix, suffix, .. } => {
                parameters.check_length(text.least_tokens(prefix))?;
                parameters.check_length_of("suffix", text.least_tokens(suffix))?;
            }
            Prompt::Chat(_) | Prompt::Ids(_) => {}
        }
        let size = prompt.size();
        let text = Arc::clone(text);
        let work = move || {
            // Held until the job ends, even if the client disconnects.
            let _charge = charge;
            to_request(&text, prompt, parameters)
        };
        self.inner.pool.run(size, work).await
    }
}

/// Tokenizes a prompt and combines it with its parameters. Runs on the tokenizer pool.
fn to_request(
    model: &ModelText,
    mut prompt: Prompt,
    mut parameters: ValidParameters,
) -> Result<TextRequest, ApiError> {
    parameters.forbid(|text| tokenize::encode(&model.tokenizer, text, SpecialTokens::AsIs))?;
    let echo = parameters.echo();
    let echoed = match &mut prompt {
        Prompt::Chat(chat) => chat.echo_prefix.take(),
        Prompt::Text(text, _) if echo && !parameters.truncates() => Some(text.clone()),
        _ => None,
    };
    let (prompt, parser_options) = tokenized(model, prompt, &parameters)?;
    let ids = parameters.fit_prompt(prompt.ids)?;
    // A truncated prompt is echoed as the model gets it.
    let echoed = match echoed {
        None if echo => decode_ids(model, &ids),
        echoed => echoed.unwrap_or_default(),
    };
    Ok(TextRequest {
        valid: parameters.into_request(TokenizedPrompt { ids, ..prompt })?,
        parser_options,
        echoed,
    })
}

/// Returns a prompt before truncation, and how to parse the output.
fn tokenized(
    model: &ModelText,
    prompt: Prompt,
    parameters: &ValidParameters,
) -> Result<(TokenizedPrompt, OutputParserOptions), ApiError> {
    let mut parser_options = OutputParserOptions::default();
    let mut end_token_ids = model.eos_ids.clone();
    let ids = match prompt {
        Prompt::Text(text, special) => tokenize::encode(&model.tokenizer, &text, special)?,
        Prompt::Chat(chat) => {
            let (text, read) = prompt_text(model, *chat, parameters.grammar_format())?;
            parameters.check_length(model.least_tokens(&text))?;
            parser_options = read;
            tokenize::encode(&model.tokenizer, &text, SpecialTokens::AsIs)?
        }
        Prompt::Infill {
            prefix,
            suffix,
            special,
        } => {
            let infill = model.infill.as_ref().ok_or_else(no_infill)?;
            end_token_ids.extend(infill.ends());
            infill.prompt(&model.tokenizer, (&prefix, &suffix), special)?
        }
        Prompt::Ids(ids) => ids,
    };
    let prompt = TokenizedPrompt {
        ids,
        end_token_ids,
        reasoning: parser_options.expected_reasoning(parameters.grammar_format()),
    };
    Ok((prompt, parser_options))
}

impl From<ValidRequest> for TextRequest {
    /// Takes a request whose whole output is content, without echo.
    fn from(valid: ValidRequest) -> Self {
        Self {
            valid,
            parser_options: OutputParserOptions::default(),
            echoed: String::new(),
        }
    }
}

/// Renders a chat; returns the prompt text and how to parse the output, to which a grammar may give
/// a `format`.
fn prompt_text(
    model: &ModelText,
    mut chat: Chat,
    format: Option<GrammarFormat>,
) -> Result<(String, OutputParserOptions), ApiError> {
    let mut text = match chat.rendered_prompt.take() {
        Some(text) => text,
        None => {
            let template = model
                .template(chat.tools.is_some())
                .ok_or_else(no_template)?;
            template.render(&chat).map_err(template_error)?
        }
    };
    let continues = chat.generation_prompt == GenerationPrompt::ContinueFinalMessage;
    if let Some(format) = format
        && !continues
    {
        text.push_str(chat.parser_options.header_after(&text, format));
    }
    let parser_options = chat.parser_options.after_prompt(&text, continues);
    Ok((text, parser_options))
}

/// Decodes token ids from the client, without special tokens.
fn decode_ids(model: &ModelText, ids: &[u32]) -> String {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(Arc::clone(&model.vocabulary), &[]);
    for &id in ids {
        if !model.vocabulary.is_special(id) {
            detokenizer.push(id, &mut text);
        }
    }
    detokenizer.finish(&mut text);
    text
}

/// A Prepare rejection of a request with a grammar is about the grammar.
fn grammar_error(error: SubmitError, grammar: Option<&'static str>) -> ApiError {
    match (error, grammar) {
        (SubmitError::Invalid(rule), Some(field)) => {
            ApiError::validation(field, format!("`{field}` cannot be used: {rule}"))
        }
        (error, _) => error.into(),
    }
}

/// An error of the template is always about the messages.
fn template_error(error: ApiError) -> ApiError {
    ApiError {
        param: error.param.or(Some("messages".into())),
        ..error
    }
}

fn no_template() -> ApiError {
    let message = "this model has no chat template. Send a text to /v1/completions or /generate, \
                   or serve a model with chat_template.jinja or `chat_template` in \
                   tokenizer_config.json";
    ApiError::new(ErrorKind::Template, message)
}

fn no_infill() -> ApiError {
    let rule = "this model's tokenizer has no tokens for filling in the middle; send the text before \
                the answer as `prompt`, without `suffix`";
    ApiError::validation("suffix", format!("`suffix` cannot be used: {rule}"))
}

fn not_loaded(state: &EngineState) -> ApiError {
    // The engine may have become ready since its limits were read.
    let why = obstacle(state).unwrap_or_else(|| "model was loading until just now".to_owned());
    ApiError::new(ErrorKind::Unavailable, why).retry(Duration::from_secs(5))
}

/// Returns the request's deadline: that of its body, or that of the task if it is earlier.
fn deadline(input: &GenerateInput) -> Option<Deadline> {
    let timeout = input.parameters.timeout.and_then(Deadline::timeout);
    let current = Deadline::current();
    timeout.map_or(current, |timeout| {
        Some(Deadline::after(timeout).earlier(current))
    })
}

/// Returns what prevents an engine in this state from running a request; `None` if nothing does.
fn obstacle(state: &EngineState) -> Option<String> {
    match state {
        EngineState::Ready => None,
        EngineState::Loading {
            phase,
            done,
            total: 0,
        } => Some(format!("model is loading ({phase}: {done})")),
        EngineState::Loading { phase, done, total } => {
            let percent = *done as f64 * 100.0 / *total as f64;
            Some(format!("model is loading ({phase}: {percent:.0}%)"))
        }
        EngineState::Restarting { .. } => {
            Some("the workers are restarting; the server's log says why".to_owned())
        }
        EngineState::Draining => Some("server is shutting down".to_owned()),
        EngineState::Stopped { .. } => {
            Some("the engine has stopped; the server's log says why".to_owned())
        }
    }
}
