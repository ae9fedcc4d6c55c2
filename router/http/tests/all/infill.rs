//! Fill-in-the-middle: `suffix` of `/v1/completions`, with the tokens of each model family.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_request::types::End;
use serde_json::{Value, json};
use tokenizers::{AddedToken, Tokenizer};

use crate::byte_tokenizer::{special, tokenizer};
use crate::scripted::{EOS, Server, byte_tokenizer};

const COMPLETIONS: &str = "/v1/completions";
/// The first id after those of bytes, `<end>` and `<far>`.
const FIRST: u32 = 258;

fn server(tokens: &[&str]) -> Server {
    let added = tokens.iter().map(|token| AddedToken::from(*token, true));
    let added: Vec<_> = added.collect();
    let mut tokenizer = byte_tokenizer();
    tokenizer.add_special_tokens(&added);
    speaking(tokenizer)
}

fn speaking(tokenizer: Tokenizer) -> Server {
    let server = Server::speaking(tokenizer, None, |_| {});
    server.backend.set_vocabulary(300);
    server
}

async fn prompt(server: &Server, fields: Value) -> Vec<u32> {
    server.backend.play(&["x"], End::Length);
    let reply = server.post(COMPLETIONS, fields).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    server.backend.last().prompt
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test]
async fn infill_prompt_has_the_token_order_of_each_model_family() {
    for [prefix, suffix, middle] in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ] {
        let server = server(&[prefix, suffix, middle]);
        let fields = json!({"prompt": "def f(", "suffix": "):\n"});
        let parts = [
            vec![FIRST],
            bytes("def f("),
            vec![FIRST + 1],
            bytes("):\n"),
            vec![FIRST + 2],
        ];
        assert_eq!(prompt(&server, fields).await, parts.concat(), "{prefix}");
    }
    let server = server(&["[PREFIX]", "[SUFFIX]"]);
    let parts = [vec![FIRST + 1], bytes("b"), vec![FIRST], bytes("a")];
    let fields = json!({"prompt": "a", "suffix": "b"});
    assert_eq!(prompt(&server, fields).await, parts.concat());
}

#[tokio::test]
async fn suffix_applies_to_every_prompt_and_an_empty_one_is_ignored() {
    let server = server(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]);
    server
        .backend
        .play(&["x"], End::Length)
        .play(&["y"], End::Length);
    let fields = json!({"prompt": ["a", ""], "suffix": "c"});
    let reply = server.post(COMPLETIONS, fields).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let requests = server.backend.requests().into_iter();
    let prompts: Vec<_> = requests.map(|request| request.prompt).collect();
    let after = [vec![FIRST + 1], bytes("c"), vec![FIRST + 2]].concat();
    assert_eq!(prompts[0], [vec![FIRST, 97], after.clone()].concat());
    assert_eq!(prompts[1], [vec![FIRST], after].concat());
    for suffix in [json!(""), json!(null)] {
        let fields = json!({"prompt": "a", "suffix": suffix});
        assert_eq!(prompt(&server, fields).await, [97]);
    }
}

#[tokio::test]
async fn infill_stops_at_the_end_tokens_of_the_model_family() {
    let server = server(&[
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|file_sep|>",
    ]);
    let sent = json!({"prompt": "a", "suffix": "b"});
    prompt(&server, sent.clone()).await;
    let ends = server.backend.last().stopping.stop_token_ids;
    assert_eq!(ends, [EOS, FIRST + 3]);
    let mut fields = sent;
    fields["ignore_eos"] = json!(true);
    prompt(&server, fields).await;
    assert!(server.backend.last().stopping.stop_token_ids.is_empty());
    prompt(&server, json!({"prompt": "a"})).await;
    assert_eq!(server.backend.last().stopping.stop_token_ids, [EOS]);
}

/// Returns a tokenizer like CodeLlama's: a blank before each text, and a BOS token.
fn sentencepiece() -> Tokenizer {
    let letters = ["<unk>", "▁", "a", "b", "☺", "▁a", "▁b"];
    let vocab: Vec<_> = letters.iter().map(|text| json!([text, -1.0])).collect();
    let begin = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let mut tokenizer = tokenizer(&json!({
        "added_tokens": [special(7, "<s>")],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                          "split": false},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
        "post_processor": {"type": "TemplateProcessing", "single": [begin, text],
            "pair": [begin, text],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    }));
    let tokens = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"];
    tokenizer.add_special_tokens(&tokens.map(|token| AddedToken::from(token, true)));
    tokenizer
}

#[tokio::test]
async fn a_suffix_gets_no_blank_and_bos_is_added_once() {
    let server = speaking(sentencepiece());
    let fields = json!({"prompt": "a", "suffix": "b"});
    let (blank_a, b, begin) = (5, 3, 7);
    let expected = [begin, 8, blank_a, 9, b, 10];
    assert_eq!(prompt(&server, fields.clone()).await, expected);
    let mut ends = server.backend.last().stopping.stop_token_ids;
    ends.sort_unstable();
    assert_eq!(ends, [11, EOS]);
    let mut bare = fields;
    bare["add_special_tokens"] = json!(false);
    assert_eq!(prompt(&server, bare).await, expected[1..]);
    let empty = json!({"prompt": "", "suffix": "b"});
    assert_eq!(prompt(&server, empty).await, [begin, 8, 9, b, 10]);
}

#[tokio::test]
async fn fields_that_cannot_go_with_a_suffix_are_refused_by_name() {
    let infill = server(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]);
    let halves = server(&["<fim_prefix>", "<fim_suffix>"]);
    for (server, fields, word) in [
        (&halves, json!({}), "no tokens for filling in"),
        (&infill, json!({"echo": true}), "`echo`"),
        (
            &infill,
            json!({"truncate_prompt_tokens": 5}),
            "`truncate_prompt_tokens`",
        ),
        (&infill, json!({"prompt": [97]}), "token ids"),
        (&infill, json!({"suffix": "b".repeat(200)}), "tokens"),
    ] {
        let mut body = json!({"prompt": "a", "suffix": "b"});
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let reply = server.post(COMPLETIONS, body).await;
        assert!(reply.status.is_client_error(), "{}", reply.text());
        let message = reply.message();
        assert!(message.contains(word), "{message}");
    }
}
