//! A compiled chat template.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind as JinjaKind, context};

use super::json::to_json;
use super::words::{self, Place};
use super::{Chat, DEVELOPER, MARK, Turn, messages};
use crate::error::{ApiError, ErrorKind};

/// A compiled chat template with the special tokens that it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    source: String,
    /// Variables that it reads and does not set.
    variables: HashSet<String>,
    /// Whether it writes the calls of earlier turns.
    knows_calls: bool,
    /// Whether it speaks of the role `developer`. One that does not refuses such a turn, leaves it
    /// out, or writes a role that its model has never seen.
    knows_developer: bool,
}

/// The template itself refused the conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

const NAME: &str = "chat_template";

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
        let variables = environment.get_template(NAME)?.undeclared_variables(false);
        Ok(Self {
            environment,
            special_tokens,
            source: source.to_owned(),
            variables,
            knows_calls: source.contains("tool_calls"),
            knows_developer: source.contains(DEVELOPER),
        })
    }

    /// The template as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The special tokens that it may write: names and contents.
    pub(crate) fn special_tokens(&self) -> &[(String, String)] {
        &self.special_tokens
    }

    /// Whether it tells the model of tools.
    pub fn knows_tools(&self) -> bool {
        self.variables.contains("tools")
    }

    /// The prompt's text. Fails when the template raises an exception or meets what it cannot use.
    pub fn render(&self, chat: &Chat) -> Result<String, ApiError> {
        let calls = !self.knows_calls && chat.messages.iter().any(words::speaks_of_tools);
        if self.knows_tools() || !(calls || chat.tools.is_some()) {
            return self.render_turns(chat);
        }
        let told = self.render_turns(&words::in_words(chat, Place::System)?);
        match told {
            // Some templates take no system turn.
            Err(error) if error.kind == ErrorKind::Template && chat.tools.is_some() => {
                let words = words::in_words(chat, Place::FirstUser)?;
                self.render_turns(&words).map_err(|_| error)
            }
            told => told,
        }
    }

    /// A variable that only some templates speak of.
    fn special<'a>(&self, name: &'a str, json: &str) -> Result<(&'a str, Value), ApiError> {
        let refused = |why: &str| ApiError {
            param: Some(name.to_owned().into()),
            ..ApiError::new(
                ErrorKind::Unsupported,
                format!("`{name}` cannot be used: {why}"),
            )
        };
        if !self.variables.contains(name) {
            return Err(refused("the model's chat template does not speak of it"));
        }
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|error| refused(&error.to_string()))?;
        Ok((name, Value::from(Serde(value))))
    }

    fn render_turns(&self, chat: &Chat) -> Result<String, ApiError> {
        let special = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let given = chat
            .special
            .iter()
            .map(|(name, json)| self.special(name, json));
        let mut given: BTreeMap<_, _> = given.collect::<Result<_, _>>()?;
        // As transformers does: what is not given is none, not undefined.
        let context = context! {
            messages => Serde(messages(chat, self.knows_developer)?),
            tools => json_variable("tools", chat.tools.as_deref())?,
            documents => given.remove("documents"),
            add_generation_prompt => chat.turn == Turn::Open,
            ..context! {
                ..json_variable("chat_template_kwargs", chat.variables.as_deref())?,
                ..Value::from_pairs(special.chain(given))
            }
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

/// A variable that came as JSON in the request's field `name`; none if it did not come.
fn json_variable(name: &'static str, json: Option<&str>) -> Result<Value, ApiError> {
    let wrong = |error| ApiError::validation(name, format!("`{name}` cannot be used: {error}"));
    let value: Option<serde_json::Value> =
        json.map(serde_json::from_str).transpose().map_err(wrong)?;
    Ok(Value::from(Serde(value)))
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
        Some(Raised(message)) => format!("the chat template refuses `messages`: {message}"),
        None => format!("the chat template failed on `messages`: {error}"),
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
    use crate::chat::ChatMessage;

    fn user(content: &str) -> ChatMessage {
        ChatMessage {
            role: "user".into(),
            content: Some(content.to_owned()),
            ..ChatMessage::default()
        }
    }

    fn render(source: &str, messages: Vec<ChatMessage>, turn: Turn) -> Result<String, ApiError> {
        let tokens = vec![("bos_token".to_owned(), "<s>".to_owned())];
        let chat = Chat {
            messages,
            turn,
            ..Chat::default()
        };
        ChatTemplate::new(source, tokens).unwrap().render(&chat)
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

    fn with_calls() -> Vec<ChatMessage> {
        let call = ChatMessage {
            role: "assistant".into(),
            tool_calls: Some(r#"[{"function":{"name":"f","arguments":"{\"a\":1}"}}]"#.into()),
            ..ChatMessage::default()
        };
        let result = |text: &str| ChatMessage {
            role: "tool".into(),
            ..user(text)
        };
        vec![user("go"), call, result("1"), result("2"), user("and?")]
    }

    #[test]
    fn a_template_that_knows_no_tools_is_told_in_words() {
        let mut chat = Chat {
            messages: with_calls(),
            tools: Some(r#"[{"z":1,"a":2},{}]"#.into()),
            turn: Turn::Bare,
            ..Chat::default()
        };
        let template = ChatTemplate::new(PLAIN, Vec::new()).unwrap();
        let text = template.render(&chat).unwrap();
        let (system, rest) = text.split_once("</>\n").unwrap();
        assert!(
            system.starts_with("<system>You can call functions."),
            "{system}"
        );
        let call = "<tool_call>\n{\"name\": \"name\", \"arguments\": {\"parameter\": \"value\"}}\n</tool_call>";
        assert!(system.contains(call), "{system}");
        assert!(system.ends_with("\n{\"z\":1,\"a\":2}\n{}"), "{system}");
        let said = "<user>go</>\n\
            <assistant><tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call></>\n\
            <user><tool_response>\n1\n</tool_response>\n\n<tool_response>\n2\n</tool_response>\n\nand?</>\n";
        assert_eq!(rest, said);
        chat.tool_prompt = Some("Call:".into());
        chat.system = Some("Be brief.".into());
        let text = template.render(&chat).unwrap();
        assert!(
            text.starts_with("<system>Be brief.\n\nCall:\n{\"z\":1,\"a\":2}\n{}</>\n<user>go</>"),
            "{text}"
        );
        chat.tools = None;
        let text = template.render(&chat).unwrap();
        assert_eq!(text, format!("<system>Be brief.</>\n{said}"));
    }

    #[test]
    fn a_template_without_system_turns_tells_the_first_user() {
        let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}\
                      {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        let template = ChatTemplate::new(source, Vec::new()).unwrap();
        let mut chat = Chat {
            messages: vec![user("go")],
            tools: Some("[{}]".into()),
            tool_prompt: Some("Call:".into()),
            turn: Turn::Bare,
            ..Chat::default()
        };
        assert_eq!(template.render(&chat).unwrap(), "<user>Call:\n{}\n\ngo");
        chat.system = Some("s".into());
        let error = template.render(&chat).unwrap_err();
        assert!(error.message.contains("no system"), "{error}");
    }

    #[test]
    fn a_conversation_without_a_system_turn_has_the_servers() {
        let template = ChatTemplate::new(PLAIN, Vec::new()).unwrap();
        let mut chat = Chat {
            messages: vec![user("a")],
            system: Some("Be brief.".into()),
            turn: Turn::Bare,
            ..Chat::default()
        };
        assert_eq!(
            template.render(&chat).unwrap(),
            "<system>Be brief.</>\n<user>a</>\n"
        );
        for role in ["system", "developer"] {
            let mut own = user("Be loud.");
            own.role = role.into();
            chat.messages = vec![own, user("a")];
            let text = template.render(&chat).unwrap();
            assert_eq!(text, "<system>Be loud.</>\n<user>a</>\n");
        }
        let knows = format!("{PLAIN}{{# developer #}}");
        let template = ChatTemplate::new(&knows, Vec::new()).unwrap();
        let text = template.render(&chat).unwrap();
        assert_eq!(text, "<developer>Be loud.</>\n<user>a</>\n");
    }

    #[test]
    fn tools_keep_their_order_and_absent_ones_are_none() {
        let source = "{% if tools is not none %}{{ tools | tojson }}{% else %}bare{% endif %}\
                      {% if deep %}{{ deep.value }}{% endif %}";
        let template = ChatTemplate::new(source, Vec::new()).unwrap();
        assert!(template.knows_tools());
        assert!(!ChatTemplate::new(PLAIN, Vec::new()).unwrap().knows_tools());
        let tools = r##"[{"z": {"$defs": {"b": 1, "a": {"$ref": "#/$defs/b"}}}, "a": []}]"##;
        let chat = Chat {
            messages: vec![user("a")],
            tools: Some(tools.to_owned()),
            variables: Some(r#"{"deep": {"value": 3}, "messages": 1}"#.to_owned()),
            ..Chat::default()
        };
        assert_eq!(template.render(&chat).unwrap(), format!("{tools}3"));
        let none = Chat {
            messages: vec![user("a")],
            ..Chat::default()
        };
        assert_eq!(template.render(&none).unwrap(), "bare");
    }
}
