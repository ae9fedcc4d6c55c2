//! Chat templates: messages in, the prompt's text out.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind as JinjaKind, State, context};
use serde::Serialize;

use crate::error::{ApiError, ErrorKind};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Free-form; the template decides which roles it knows.
    pub role: String,
    /// Text; `None` only beside `tool_calls`.
    pub content: Option<String>,
    /// The speaker's name; read by templates that show it.
    pub name: Option<String>,
    /// Calls made by an assistant's turn: a JSON list, parsed only when the turn is rendered.
    pub tool_calls: Option<String>,
    /// Which call a tool's turn answers.
    pub tool_call_id: Option<String>,
}

/// A turn as templates see it.
#[derive(Serialize)]
struct TemplateMessage<'a> {
    role: &'a str,
    content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

/// What follows the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The opening of an assistant's turn: the model answers.
    Open,
    /// Nothing: the prompt ends where the template ends.
    Bare,
    /// The last message stays open, and the model goes on with it.
    Continue,
}

/// A conversation to render.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// In order; not empty.
    pub messages: Vec<ChatMessage>,
    /// What follows them.
    pub turn: Turn,
}

/// A compiled chat template with the special tokens that it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
}

/// The template itself refused the conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

const NAME: &str = "chat_template";

/// Stands at the end of a message that stays open: characters for private use, which no template
/// writes, trims or escapes. Looking for the content itself would find it in what follows, such as
/// a "<" in `<|im_end|>`.
const MARK: &str = "\u{E000}\u{E0A5}\u{E000}";

impl ChatTemplate {
    /// Compiles `source`. `special_tokens` are (name, content), such as (`bos_token`, `<s>`).
    /// The error says where the source is wrong.
    pub fn new(source: &str, special_tokens: Vec<(String, String)>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?;
        environment.set_syntax(syntax);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(NAME, without_generation_tags(source).into_owned())?;
        Ok(Self {
            environment,
            special_tokens,
        })
    }

    /// The prompt's text. Fails when the template raises an exception or meets what it cannot use.
    pub fn render(&self, chat: &Chat) -> Result<String, ApiError> {
        let special = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.as_str(), token.as_str()));
        let context = context! {
            messages => Serde(messages(chat)?),
            add_generation_prompt => chat.turn == Turn::Open,
            ..Value::from_pairs(special)
        };
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| template_error(&e))?;
        let text = template.render(context).map_err(|e| template_error(&e))?;
        match chat.turn {
            Turn::Continue => leave_open(text),
            Turn::Open | Turn::Bare => Ok(text),
        }
    }
}

/// The messages; `MARK` ends the last one if it stays open.
fn messages(chat: &Chat) -> Result<Vec<TemplateMessage<'_>>, ApiError> {
    let turns = chat.messages.iter().enumerate();
    let mut messages: Vec<_> = turns
        .map(|(index, message)| message.for_template(index))
        .collect::<Result<_, _>>()?;
    if chat.turn == Turn::Continue
        && let Some(content) = messages.last_mut().and_then(|m| m.content.as_mut())
    {
        content.to_mut().push_str(MARK);
    }
    Ok(messages)
}

impl ChatMessage {
    /// Bytes of its text, about, with what a template writes around it.
    pub(crate) fn size(&self) -> usize {
        const AROUND: usize = 64;
        let texts = [
            &self.content,
            &self.name,
            &self.tool_calls,
            &self.tool_call_id,
        ];
        let texts = texts.into_iter().flatten().map(String::len);
        AROUND + self.role.len() + texts.sum::<usize>()
    }

    /// `index` is its place, for errors.
    fn for_template(&self, index: usize) -> Result<TemplateMessage<'_>, ApiError> {
        let calls = self.tool_calls.as_deref().map(tool_calls);
        let wrong = |error| {
            let rule = format!("`messages[{index}].tool_calls` cannot be used: {error}");
            ApiError::validation("messages", rule)
        };
        Ok(TemplateMessage {
            role: &self.role,
            content: self.content.as_deref().map(Cow::Borrowed),
            name: self.name.as_deref(),
            tool_calls: calls.transpose().map_err(wrong)?,
            tool_call_id: self.tool_call_id.as_deref(),
        })
    }
}

/// Templates expect a call's arguments as an object; clients send them as JSON in a string.
fn tool_calls(json: &str) -> Result<serde_json::Value, serde_json::Error> {
    let mut calls: serde_json::Value = serde_json::from_str(json)?;
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let text = arguments.as_str();
        let parsed = text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        if let Some(object) = parsed.filter(serde_json::Value::is_object) {
            *arguments = object;
        }
    }
    Ok(calls)
}

/// Cuts what the template writes after the last message's content, which `MARK` ends.
fn leave_open(mut text: String) -> Result<String, ApiError> {
    let end = text.rfind(MARK).ok_or_else(|| {
        let message = "the chat template does not write the last message's content as it is, \
                       so it cannot be continued; set `continue_final_message` to false";
        ApiError::new(ErrorKind::Template, message)
    })?;
    text.truncate(end);
    Ok(text)
}

fn template_error(error: &Error) -> ApiError {
    let raised = std::error::Error::source(error).and_then(|s| s.downcast_ref::<Raised>());
    let message = match raised {
        Some(Raised(message)) => format!("the chat template refuses these messages: {message}"),
        None => format!("the chat template failed on these messages: {error}"),
    };
    ApiError {
        param: Some("messages".into()),
        ..ApiError::new(ErrorKind::Template, message)
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(JinjaKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// `datetime.now().strftime(format)`, in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|e| Error::new(JinjaKind::InvalidOperation, format!("strftime_now: {e}")))
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Python's spacing, nothing escaped for HTML.
#[allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn to_json(
    _state: &State<'_, '_>,
    value: Value,
    indent: Option<usize>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = indent.or(options.get::<Option<usize>>("indent")?);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    // The default already: characters outside ASCII stay as they are.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let value = serde_json::to_value(&value)
        .map_err(|e| Error::new(JinjaKind::BadSerialization, format!("tojson: {e}")))?;
    let mut out = String::new();
    let writer = PythonJson { indent, sort };
    writer.value(&value, 0, &mut out);
    Ok(Value::from_safe_string(out))
}

/// Writes JSON with Python's separators.
struct PythonJson {
    indent: Option<usize>,
    sort: bool,
}

impl PythonJson {
    fn value(&self, value: &serde_json::Value, depth: usize, out: &mut String) {
        match value {
            serde_json::Value::Array(items) if !items.is_empty() => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.separate(i, depth + 1, out);
                    self.value(item, depth + 1, out);
                }
                self.line(depth, out);
                out.push(']');
            }
            serde_json::Value::Object(map) if !map.is_empty() => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                out.push('{');
                for (i, (key, item)) in entries.into_iter().enumerate() {
                    self.separate(i, depth + 1, out);
                    out.push_str(&serde_json::Value::from(key.as_str()).to_string());
                    out.push_str(": ");
                    self.value(item, depth + 1, out);
                }
                self.line(depth, out);
                out.push('}');
            }
            plain => out.push_str(&plain.to_string()),
        }
    }

    fn separate(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(if self.indent.is_some() { "," } else { ", " });
        }
        self.line(depth, out);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

/// Drops `{% generation %}` and `{% endgeneration %}`: marks for training that render to nothing.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation %}") && !source.contains("generation -%}") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        let Some(length) = tag.find("%}").map(|i| i + 2) else {
            break;
        };
        let (tag, after) = tag.split_at(length);
        let name = tag.trim_matches(|c: char| "{}%-+".contains(c) || c.is_whitespace());
        out.push_str(before);
        // A block that always renders: the tag's whitespace control keeps its meaning.
        match name {
            "generation" => out.push_str(&tag.replace(name, "if true")),
            "endgeneration" => out.push_str(&tag.replace(name, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(content: &str) -> ChatMessage {
        let content = Some(content.to_owned());
        ChatMessage {
            role: "user".into(),
            content,
            name: None,
            tool_calls: None,
            tool_call_id: None,
        }
    }

    fn render(source: &str, messages: Vec<ChatMessage>, turn: Turn) -> Result<String, ApiError> {
        let tokens = vec![("bos_token".to_owned(), "<s>".to_owned())];
        ChatTemplate::new(source, tokens)
            .unwrap()
            .render(&Chat { messages, turn })
    }

    const PLAIN: &str = "{{ bos_token }}{% for m in messages %}\n<{{ m.role }}>{{ m['content'] }}</>\n\
                         {% endfor %}\n{% if add_generation_prompt %}<assistant>{% endif %}";

    #[test]
    fn renders_turns_and_trims_blocks_as_jinja_does() {
        let text = render(PLAIN, vec![user("a"), user("b")], Turn::Open).unwrap();
        assert_eq!(text, "<s><user>a</>\n<user>b</>\n<assistant>");
        assert_eq!(
            render(PLAIN, vec![user("a")], Turn::Bare).unwrap(),
            "<s><user>a</>\n"
        );
    }

    #[test]
    fn a_continued_message_stays_open() {
        assert_eq!(
            render(PLAIN, vec![user("a"), user("b ")], Turn::Continue).unwrap(),
            "<s><user>a</>\n<user>b "
        );
        let silent = render("{{ bos_token }}", vec![user("a")], Turn::Continue).unwrap_err();
        assert!(
            silent.message.contains("continue_final_message"),
            "{silent}"
        );
    }

    #[test]
    fn a_continued_message_may_look_like_what_follows_it() {
        for content in ["<", "/", ">", "</>", ""] {
            assert_eq!(
                render(PLAIN, vec![user("a"), user(content)], Turn::Continue).unwrap(),
                format!("<s><user>a</>\n<user>{content}")
            );
        }
    }

    #[test]
    fn an_exception_reaches_the_client() {
        let error = render(
            "{{ raise_exception('no such role') }}",
            vec![user("a")],
            Turn::Open,
        );
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Template);
        assert!(error.message.ends_with("no such role"), "{error}");
    }

    #[test]
    fn json_has_pythons_spacing() {
        let mut message = user("x");
        message.tool_calls = Some(r#"[{"b": "<é'>", "a": [1, 2.5, null, true, {}]}]"#.into());
        let text = render(
            "{{ messages[0].tool_calls | tojson }}",
            vec![message.clone()],
            Turn::Open,
        );
        assert_eq!(
            text.unwrap(),
            r#"[{"b": "<é'>", "a": [1, 2.5, null, true, {}]}]"#
        );
        let text = render(
            "{{ messages[0].tool_calls[0] | tojson(indent=2) }}",
            vec![message],
            Turn::Open,
        );
        let expected = "{\n  \"b\": \"<é'>\",\n  \"a\": [\n    1,\n    2.5,\n    null,\n    true,\n    {}\n  ]\n}";
        assert_eq!(text.unwrap(), expected);
    }

    #[test]
    fn python_methods_loop_controls_and_training_marks_work() {
        let source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\
                      {% generation %}{{ m.content.strip().upper() }}{% endgeneration %}{% endfor %}";
        assert_eq!(
            render(source, vec![user(" a "), user("b")], Turn::Open).unwrap(),
            "A"
        );
    }

    #[test]
    fn dates_are_formatted_as_python_does() {
        let text = render(
            "{{ strftime_now('%d %b %Y') }}",
            vec![user("a")],
            Turn::Open,
        )
        .unwrap();
        assert_eq!(text.len(), 11, "{text}");
        assert!(render("{{ strftime_now('%!') }}", vec![user("a")], Turn::Open).is_err());
    }
}
