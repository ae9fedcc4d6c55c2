//! What is asked: a job is one request, or a conversation of several.

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Which API the requests speak.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Api {
    Generate,
    Chat,
    Completions,
}

/// Requests that follow each other: each one's prompt continues what was said before.
#[derive(Deserialize)]
pub(crate) struct Job {
    /// Seconds after the start at which the first request arrives; at once if absent.
    #[serde(default)]
    pub(crate) at: f64,
    /// The requests.
    pub(crate) turns: Vec<Turn>,
}

/// One request.
#[derive(Deserialize)]
pub(crate) struct Turn {
    /// What is said.
    pub(crate) prompt: Prompt,
    /// Tokens of the answer, exactly.
    pub(crate) tokens: u32,
    /// More of the body (of its `parameters`, where the API has them), in the place of what is there.
    #[serde(default)]
    pub(crate) fields: Map<String, Value>,
}

/// A prompt.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    /// Text, which later turns continue.
    Text(String),
    /// Token ids; only for jobs of one turn.
    Ids(Vec<u32>),
}

/// Where requests go.
pub(crate) struct Server {
    /// Host and port.
    pub(crate) address: String,
    /// API to speak.
    pub(crate) api: Api,
    /// The model's name there.
    pub(crate) model: String,
}

impl Server {
    /// The bytes of a request. `said` is the conversation so far.
    pub(crate) fn request(&self, said: &str, turn: &Turn) -> String {
        let prompt = match &turn.prompt {
            Prompt::Text(text) => json!(format!("{said}{text}")),
            Prompt::Ids(ids) => json!(ids),
        };
        let (path, mut body) = self.body(&prompt, turn.tokens);
        let place = match self.api {
            Api::Generate => &mut body["parameters"],
            Api::Chat | Api::Completions => &mut body,
        };
        for (name, value) in &turn.fields {
            place[name] = value.clone();
        }
        let body = body.to_string();
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )
    }

    fn body(&self, prompt: &Value, tokens: u32) -> (&'static str, Value) {
        let mut body = json!({
            "model": self.model, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        match self.api {
            Api::Generate => {
                let parameters = json!({"max_new_tokens": tokens});
                (
                    "/generate_stream",
                    json!({"inputs": prompt, "parameters": parameters}),
                )
            }
            Api::Chat => {
                body["messages"] = json!([{"role": "user", "content": prompt}]);
                ("/v1/chat/completions", body)
            }
            Api::Completions => {
                body["prompt"] = prompt.clone();
                ("/v1/completions", body)
            }
        }
    }
}

/// `count` jobs of one request each, whose prompts of `words` words begin differently.
pub(crate) fn alike(count: usize, words: usize, tokens: u32) -> Vec<Job> {
    const WORDS: [&str; 8] = [
        "the", "river", "gate", "opens", "and", "water", "runs", "down",
    ];
    let text = |index: usize| {
        let mut text = index.to_string();
        for word in 1..words {
            text.push(' ');
            text.push_str(WORDS[(index + word) % WORDS.len()]);
        }
        text
    };
    let job = |index| Job {
        at: 0.0,
        turns: vec![Turn {
            prompt: Prompt::Text(text(index)),
            tokens,
            fields: Map::new(),
        }],
    };
    (0..count).map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_where_the_api_has_them() {
        let line = r#"{"prompt": "a", "tokens": 3, "fields": {"seed": 7, "temperature": null}}"#;
        let turn: Turn = serde_json::from_str(line).unwrap();
        for (api, place) in [(Api::Completions, ""), (Api::Generate, "/parameters")] {
            let server = Server {
                address: "h".into(),
                api,
                model: "m".into(),
            };
            let request = server.request("", &turn);
            let (_, body) = request.split_once("\r\n\r\n").unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body.pointer(&format!("{place}/seed")), Some(&json!(7)));
            assert_eq!(
                body.pointer(&format!("{place}/temperature")),
                Some(&Value::Null)
            );
        }
    }
}
