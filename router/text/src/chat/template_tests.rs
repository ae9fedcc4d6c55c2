use super::*;
use crate::chat::ChatMessage;

fn user(content: &str) -> ChatMessage {
    ChatMessage {
        role: "user".into(),
        content: Some(content.to_owned()),
        ..ChatMessage::default()
    }
}

fn render(
    source: &str,
    messages: Vec<ChatMessage>,
    generation_prompt: GenerationPrompt,
) -> Result<String, ApiError> {
    let tokens = vec![("bos_token".to_owned(), "<s>".to_owned())];
    let chat = Chat {
        messages,
        generation_prompt,
        ..Chat::default()
    };
    ChatTemplate::new(source, tokens).unwrap().render(&chat)
}

const PLAIN: &str = "{{ bos_token }}{% for m in messages %}\n<{{ m.role }}>{{ m['content'] }}</>\n\
                     {% endfor %}\n{% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
fn renders_turns_and_trims_blocks_as_jinja_does() {
    let text = render(PLAIN, vec![user("a"), user("b")], GenerationPrompt::Add).unwrap();
    assert_eq!(text, "<s><user>a</>\n<user>b</>\n<assistant>");
    assert_eq!(
        render(PLAIN, vec![user("a")], GenerationPrompt::Omit).unwrap(),
        "<s><user>a</>\n"
    );
}

#[test]
fn a_continued_message_stays_open() {
    assert_eq!(
        render(
            PLAIN,
            vec![user("a"), user("b ")],
            GenerationPrompt::ContinueFinalMessage
        )
        .unwrap(),
        "<s><user>a</>\n<user>b "
    );
    let silent = render(
        "{{ bos_token }}",
        vec![user("a")],
        GenerationPrompt::ContinueFinalMessage,
    )
    .unwrap_err();
    assert!(
        silent.message.contains("continue_final_message"),
        "{silent}"
    );
}

#[test]
fn a_continued_message_may_equal_the_text_that_closes_it() {
    for content in ["<", "/", ">", "</>", ""] {
        assert_eq!(
            render(
                PLAIN,
                vec![user("a"), user(content)],
                GenerationPrompt::ContinueFinalMessage
            )
            .unwrap(),
            format!("<s><user>a</>\n<user>{content}")
        );
    }
}

#[test]
fn an_exception_reaches_the_client() {
    let error = render(
        "{{ raise_exception('no such role') }}",
        vec![user("a")],
        GenerationPrompt::Add,
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
        GenerationPrompt::Add,
    );
    assert_eq!(
        text.unwrap(),
        r#"[{"b": "<é'>", "a": [1, 2.5, null, true, {}]}]"#
    );
    let text = render(
        "{{ messages[0].tool_calls[0] | tojson(indent=2) }}",
        vec![message],
        GenerationPrompt::Add,
    );
    let expected =
        "{\n  \"b\": \"<é'>\",\n  \"a\": [\n    1,\n    2.5,\n    null,\n    true,\n    {}\n  ]\n}";
    assert_eq!(text.unwrap(), expected);
}

#[test]
fn python_methods_loop_controls_and_training_marks_work() {
    let source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\
                  {% generation %}{{ m.content.strip().upper() }}{% endgeneration %}{% endfor %}";
    assert_eq!(
        render(source, vec![user(" a "), user("b")], GenerationPrompt::Add).unwrap(),
        "A"
    );
}

#[test]
fn dates_are_formatted_as_python_does() {
    let text = render(
        "{{ strftime_now('%d %b %Y') }}",
        vec![user("a")],
        GenerationPrompt::Add,
    )
    .unwrap();
    assert_eq!(text.len(), 11, "{text}");
    assert!(
        render(
            "{{ strftime_now('%!') }}",
            vec![user("a")],
            GenerationPrompt::Add
        )
        .is_err()
    );
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
fn tools_are_described_in_the_system_message_if_the_template_has_none() {
    let mut chat = Chat {
        messages: with_calls(),
        tools: Some(r#"[{"z":1,"a":2},{}]"#.into()),
        generation_prompt: GenerationPrompt::Omit,
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
fn tools_go_to_the_first_user_message_if_the_template_has_no_system_role() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}\
                  {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    let mut chat = Chat {
        messages: vec![user("go")],
        tools: Some("[{}]".into()),
        tool_prompt: Some("Call:".into()),
        generation_prompt: GenerationPrompt::Omit,
        ..Chat::default()
    };
    assert_eq!(template.render(&chat).unwrap(), "<user>Call:\n{}\n\ngo");
    chat.system = Some("s".into());
    let error = template.render(&chat).unwrap_err();
    assert!(error.message.contains("no system"), "{error}");
}

#[test]
fn the_default_system_prompt_fills_in_for_a_missing_system_message() {
    let template = ChatTemplate::new(PLAIN, Vec::new()).unwrap();
    let mut chat = Chat {
        messages: vec![user("a")],
        system: Some("Be brief.".into()),
        generation_prompt: GenerationPrompt::Omit,
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
fn tools_keep_their_key_order_and_are_none_if_absent() {
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

#[test]
fn none_is_not_iterable_and_a_template_that_sets_tools_knows_them() {
    let source = "{% set tools = tools or [] %}{% if tools is iterable and tools | length > 0 %}\
                  {{ tools | length }} tools{% elif none is iterable %}wrong{% else %}none{% endif %}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    assert!(template.knows_tools());
    let mut chat = Chat {
        messages: vec![user("a")],
        ..Chat::default()
    };
    assert_eq!(template.render(&chat).unwrap(), "none");
    chat.tools = Some("[{}, {}]".into());
    assert_eq!(template.render(&chat).unwrap(), "2 tools");
    let loops = "{% for tools in messages %}{{ tools }}{% endfor %}";
    assert!(!ChatTemplate::new(loops, Vec::new()).unwrap().knows_tools());
}

#[test]
fn a_message_has_only_the_keys_that_were_given() {
    let mut chat = Chat {
        messages: with_calls(),
        generation_prompt: GenerationPrompt::Omit,
        ..Chat::default()
    };
    chat.messages[4].reasoning_content = Some("hm".into());
    let source = "{% for m in messages %}{{ m.keys() | join(',') }};{% endfor %}\
                  {{ messages[1].tool_calls[0].function.arguments.a + 1 }}";
    let text = ChatTemplate::new(source, Vec::new()).unwrap().render(&chat);
    let wanted = "role,content;role,tool_calls;role,content;role,content;\
                  thinking,role,content,reasoning_content;2";
    assert_eq!(text.unwrap(), wanted);
}

#[test]
fn content_is_a_list_of_parts_if_the_template_loops_over_it() {
    let mut parts = user("ab");
    parts.parts = vec!["a".into(), "b".into()];
    let render = |source: &str, turn| {
        let messages = vec![user("x"), parts.clone()];
        render(source, messages, turn).unwrap()
    };
    let text = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
    assert_eq!(render(text, GenerationPrompt::Omit), "<x><ab>");
    let either = "{% for m in messages %}{% if m['content'] is string %}<{{ m.content }}>{% else %}\
                  {% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(render(either, GenerationPrompt::Omit), "<x>[a][b]");
    assert_eq!(
        render(either, GenerationPrompt::ContinueFinalMessage),
        "<x>[a][b"
    );
    // The content may also pass through a macro's parameter or a variable.
    let only = "{% macro all(content) %}{% for part in content %}[{{ part['text'] }}]{% endfor %}\
                {% endmacro %}{% for m in messages %}{{ all(m.content) }}{% endfor %}";
    assert_eq!(render(only, GenerationPrompt::Omit), "[x][a][b]");
    let set = "{% for m in messages %}{% set said = m.content %}{% for part in said %}\
               [{{ part.text }}]{% endfor %}{% endfor %}";
    assert_eq!(render(set, GenerationPrompt::Omit), "[x][a][b]");
}

#[test]
fn integers_of_any_size_are_rendered_exactly() {
    let mut message = user("x");
    let big = "340282366920938463463374607431768211456";
    message.tool_calls = Some(format!("[{{\"a\": {big}, \"b\": 18446744073709551616}}]"));
    let source = "{{ messages[0].tool_calls | tojson }} {{ messages[0].tool_calls[0].b + 1 }}";
    let text = render(source, vec![message], GenerationPrompt::Add).unwrap();
    let wanted = format!("[{{\"a\": {big}, \"b\": 18446744073709551616}}] 18446744073709551617");
    assert_eq!(text, wanted);
}

#[test]
fn a_syntax_error_names_its_line() {
    for source in [
        "a\n{% if %}",
        "a\n{{ 1 + }}",
        "a\n{{ 'x }}",
        "a\n{% for x %}",
        "a\n{{ a b }}",
    ] {
        let error = ChatTemplate::new(source, Vec::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2"), "{error}");
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    assert!(ChatTemplate::new(&deep, Vec::new()).is_err());
}
