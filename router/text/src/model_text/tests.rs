//! Tests of the text files of models.

use super::*;
use crate::chat::Chat;

#[test]
fn a_named_template_file_overrides_the_models_own() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
    let own = ModelText::load(&model).unwrap().chat_template.unwrap();
    let folder = std::env::temp_dir().join(format!("penstock-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let named = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        let files = TextFiles {
            chat_template: Some(path),
            ..TextFiles::default()
        };
        ModelText::load_with(&model, &files)
    };
    for (name, text) in [
        ("other.jinja", "{{ messages }}"),
        (
            "tokenizer_config.json",
            r#"{"chat_template": "{{ messages }}"}"#,
        ),
    ] {
        let found = named(name, text).unwrap().chat_template.unwrap();
        assert_eq!(found.source(), "{{ messages }}");
        assert_ne!(found.source(), own.source());
    }
    let list = r#"{"chat_template": [{"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools }}"}]}"#;
    std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), list).unwrap();
    let both = ModelText::load(&folder).unwrap();
    let sources = [false, true].map(|tools| both.template(tools).unwrap().source());
    assert_eq!(sources, ["plain", "with {{ tools }}"]);
    let none = named("none.json", "{}").unwrap_err().to_string();
    assert!(none.contains("no `chat_template`"), "{none}");
    let broken = named("broken.jinja", "{% if %}").unwrap_err().to_string();
    assert!(broken.contains("does not compile"), "{broken}");
    let nowhere = TextFiles {
        chat_template: Some(folder.join("nowhere")),
        ..TextFiles::default()
    };
    let missing = ModelText::load_with(&model, &nowhere);
    assert!(missing.unwrap_err().to_string().contains("cannot read"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_model_with_code_in_the_place_of_a_template_has_a_built_in_one() {
    let folder = std::env::temp_dir().join(format!("penstock-b-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
    std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let template = |kind: &str| {
        let config = format!(r#"{{"model_type": "{kind}"}}"#);
        std::fs::write(folder.join("config.json"), config).unwrap();
        let found = ModelText::load(&folder).unwrap().chat_template;
        found.map(|template| template.source().to_owned())
    };
    assert_eq!(template("llama"), None);
    let built_in = ["deepseek_v32", "deepseek_v4"].map(template);
    let tag = |source: &Option<String>| source.as_ref().unwrap().contains("<｜User｜>");
    assert!(built_in.iter().all(tag));
    assert_ne!(built_in[0], built_in[1]);
    std::fs::write(folder.join("chat_template.jinja"), "own").unwrap();
    assert_eq!(template("deepseek_v4").as_deref(), Some("own"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn generation_config_gives_defaults_and_end_tokens_unless_it_is_off() {
    let folder = std::env::temp_dir().join(format!("penstock-g-{}", std::process::id()));
    let other = folder.join("other");
    std::fs::create_dir_all(&other).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
    std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let write = |path: PathBuf, text: &str| std::fs::write(path, text).unwrap();
    let name = "generation_config.json";
    write(
        folder.join(name),
        r#"{"temperature": 0.5, "eos_token_id": [2, 1]}"#,
    );
    write(folder.join("config.json"), r#"{"eos_token_id": 3}"#);
    write(other.join(name), r#"{"top_k": 7}"#);
    let load = |generation_config| {
        let files = TextFiles {
            generation_config,
            ..TextFiles::default()
        };
        ModelText::load_with(&folder, &files)
    };
    for (source, defaults, ends) in [
        (GenerationConfig::Model, "temperature 0.5", vec![1, 2]),
        (GenerationConfig::Off, "", vec![3]),
        (GenerationConfig::Folder(other), "top_k 7", vec![3]),
    ] {
        let text = load(source).unwrap();
        assert_eq!(
            (text.defaults.to_string().as_str(), text.eos_ids),
            (defaults, ends)
        );
    }
    let nowhere = load(GenerationConfig::Folder(folder.join("nowhere")));
    assert!(nowhere.unwrap_err().to_string().contains("cannot read"));
    write(folder.join(name), r#"{"top_p": 2}"#);
    let wrong = load(GenerationConfig::Model).unwrap_err().to_string();
    assert!(wrong.contains("top_p") && wrong.contains(name), "{wrong}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Loads brook's tokenizer with other files beside it.
fn with_files(name: &str, files: &[(&str, &str)]) -> ModelText {
    let folder = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
    std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let text = ModelText::load(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    text
}

#[test]
fn the_end_token_of_the_tokenizer_ends_answers_too() {
    let brook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
    let tokenizer = ModelText::load(&brook).unwrap().tokenizer;
    let named = tokenizer.id_to_token(3).unwrap();
    let config = serde_json::json!({"eos_token": {"content": named}}).to_string();
    for (generation, ends) in [
        (r#"{"eos_token_id": 2}"#, vec![2, 3]),
        (r#"{"eos_token_id": [3, -1]}"#, vec![3]),
        (r#"{"eos_token_id": -1}"#, vec![1, 3]),
    ] {
        let files = [
            ("tokenizer_config.json", config.as_str()),
            ("generation_config.json", generation),
            (
                "config.json",
                r#"{"eos_token_id": 1, "time_step_limit": [0.0, Infinity]}"#,
            ),
        ];
        assert_eq!(with_files("ends", &files).eos_ids, ends, "{generation}");
    }
}

#[test]
fn templates_know_the_tokens_of_special_tokens_map() {
    let text = with_files(
        "named",
        &[
            ("tokenizer_config.json", r#"{"eos_token": "</s>"}"#),
            (
                "special_tokens_map.json",
                r#"{"bos_token": "<s>", "eos_token": "other"}"#,
            ),
            ("chat_template.jinja", "{{ bos_token }}{{ eos_token }}"),
        ],
    );
    let rendered = text.chat_template.unwrap().render(&Chat::default());
    assert_eq!(rendered.unwrap(), "<s></s>");
}

#[test]
fn a_template_without_tools_leaves_them_to_the_tokenizers_own() {
    let own = r#"{"chat_template": "own {{ tools }}"}"#;
    let sources = |template: &str, config: &str| {
        let files = [
            ("chat_template.json", template),
            ("tokenizer_config.json", config),
        ];
        let text = with_files("tools", &files);
        [false, true].map(|tools| text.template(tools).unwrap().source().to_owned())
    };
    let plain = r#"{"chat_template": "plain"}"#;
    assert_eq!(sources(plain, own), ["plain", "own {{ tools }}"]);
    assert_eq!(sources(plain, plain), ["plain", "plain"]);
    let knowing = r#"{"chat_template": "{{ tools }}"}"#;
    assert_eq!(sources(knowing, own), ["{{ tools }}", "{{ tools }}"]);
}

#[test]
fn tokens_that_only_tokenizer_config_lists_are_tokens() {
    let listed = serde_json::json!({"added_tokens_decoder": {
        "3": {"content": "<|end|>", "rstrip": true, "normalized": false, "special": true},
        "4096": {"content": "<|x|>", "special": true},
        "4097": {"content": "<think>", "normalized": false},
        "5000": {"content": "<|far|>", "special": true},
        "7": {"content": "<|y|>", "special": true},
    }});
    let text = with_files("added", &[("tokenizer_config.json", &listed.to_string())]);
    let ids = |prompt: &str| {
        text.tokenizer
            .encode(prompt, false)
            .unwrap()
            .get_ids()
            .to_vec()
    };
    assert_eq!(ids("<|x|><think>"), [4096, 4097]);
    assert_eq!(
        ids("<|end|>  \n<|x|>"),
        [3, 4096],
        "spaces behind it are its own"
    );
    assert!(text.vocabulary.is_special(4096) && !text.vocabulary.is_special(4097));
    assert!(
        ids("<|far|>").len() > 1 && ids("<|y|>").len() > 1,
        "not their ids"
    );
}
