//! A minimal client of the OpenAI chat route. Dropping an answer closes its connection, so the
//! server aborts the request.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::sse;
use crate::error::{Failure, Outcome};

const MAX_ERROR_BYTES: usize = 1 << 20;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Message {
    pub(super) role: String,
    pub(super) content: String,
}

/// The sampling parameters from the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct SamplingParameters {
    pub(super) max_tokens: u32,
    pub(super) temperature: Option<f32>,
}

/// A client of a server with the OpenAI chat route.
#[derive(Clone, Debug)]
pub(super) struct Client {
    authority: String,
    base: String,
    /// `Authorization` of every request, if the server needs a key.
    authorization: Option<HeaderValue>,
    model: String,
}

/// An answer that is being streamed.
#[derive(Debug)]
pub(super) struct AnswerStream {
    body: Incoming,
    events: sse::Events,
    _connection: Connection,
}

/// The task that drives a connection; aborted when this value is dropped.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// Connects to the server at `url` and queries the name of its model.
    pub(super) async fn connect(url: &str, key: Option<&str>) -> Outcome<Self> {
        let (authority, base) = parse(url)?;
        let authorization = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| Failure::usage("--api-key: a header cannot contain this key."))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let mut client = Self {
            authority,
            base,
            authorization: authorization.transpose()?,
            model: String::new(),
        };
        let models = client.get("/v1/models").await?;
        let model = models["data"][0]["id"].as_str();
        let model = model.ok_or_else(|| {
            Failure::runtime(format!(
                "{url} does not list its models as the OpenAI API does"
            ))
        })?;
        model.clone_into(&mut client.model);
        Ok(client)
    }

    /// Returns the name of the served model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Sends the conversation and returns the stream of the answer.
    pub(super) async fn stream_answer(
        &self,
        turns: &[Message],
        sampling: SamplingParameters,
    ) -> Outcome<AnswerStream> {
        let mut body = json!({
            "model": self.model,
            "messages": turns,
            "stream": true,
            "max_tokens": sampling.max_tokens,
        });
        if let Some(temperature) = sampling.temperature {
            body["temperature"] = temperature.into();
        }
        let request = Request::post(format!("{}/v1/chat/completions", self.base))
            .header(CONTENT_TYPE, "application/json")
            .header(HOST, &self.authority)
            .body(Full::from(body.to_string()))
            .map_err(|error| Failure::runtime(error.to_string()))?;
        let (response, connection) = self.send(request).await?;
        Ok(AnswerStream {
            body: response.into_body(),
            events: sse::Events::default(),
            _connection: connection,
        })
    }

    async fn get(&self, path: &str) -> Outcome<Value> {
        let request = Request::get(format!("{}{path}", self.base))
            .header(HOST, &self.authority)
            .body(Full::default())
            .map_err(|error| Failure::runtime(error.to_string()))?;
        let (response, _connection) = self.send(request).await?;
        let body = read(response.into_body()).await?;
        serde_json::from_slice(&body)
            .map_err(|_| Failure::runtime(format!("{} does not answer in JSON", self.authority)))
    }

    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Outcome<(Response<Incoming>, Connection)> {
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let lost = |error: hyper::Error| {
            Failure::runtime(format!(
                "lost the connection to {}: {error}",
                self.authority
            ))
        };
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| {
            Failure::runtime(format!(
                "cannot reach {}: {error}. Start a server with `penstock serve`, or leave --url out.",
                self.authority
            ))
        })?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let connection = Connection(tokio::spawn(async move {
            // The caller sees the same error when it reads the body.
            let _ = driver.await;
        }));
        let response = sender.send_request(request).await.map_err(lost)?;
        if response.status().is_success() {
            return Ok((response, connection));
        }
        let status = response.status();
        let body = read(response.into_body()).await?;
        Err(Failure::runtime(
            error_message(&body).unwrap_or_else(|| format!("status {status}")),
        ))
    }
}

impl AnswerStream {
    /// Returns the next piece of text; `None` at the end.
    pub(super) async fn next(&mut self) -> Outcome<Option<String>> {
        loop {
            while let Some(data) = self.events.pop() {
                if data == "[DONE]" {
                    return Ok(None);
                }
                if let Some(text) = delta_text(&data)? {
                    return Ok(Some(text));
                }
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.events.feed(&data);
                    }
                }
                Some(Err(error)) => {
                    return Err(Failure::runtime(format!("the answer was cut off: {error}")));
                }
            }
        }
    }
}

/// Splits a URL into host:port and the prefix of every path.
fn parse(url: &str) -> Outcome<(String, String)> {
    let full = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let wrong = |why: &str| {
        Failure::usage(format!(
            "--url {url}: {why}. Write it as http://127.0.0.1:3000."
        ))
    };
    let uri: Uri = full.parse().map_err(|_| wrong("not a URL"))?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong("only http:// is spoken here"));
    }
    let host = uri
        .host()
        .filter(|host| !host.is_empty())
        .ok_or_else(|| wrong("it has no host"))?;
    let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    let base = uri
        .path()
        .trim_end_matches('/')
        .trim_end_matches("/v1")
        .to_owned();
    Ok((authority, base))
}

async fn read(body: Incoming) -> Outcome<Bytes> {
    let body = Limited::new(body, MAX_ERROR_BYTES).collect().await;
    let body = body.map_err(|error| Failure::runtime(format!("the reply was cut off: {error}")))?;
    Ok(body.to_bytes())
}

/// Returns the message of an error body in OpenAI's or the native format.
fn error_message(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let message = body["error"]["message"]
        .as_str()
        .or_else(|| body["error"].as_str())?;
    Some(message.to_owned())
}

/// Returns the text of one event; `None` if it has none.
fn delta_text(data: &str) -> Outcome<Option<String>> {
    let event: Value = serde_json::from_str(data)
        .map_err(|_| Failure::runtime(format!("the server sent invalid JSON: {data}")))?;
    if !event["error"].is_null() {
        let said = error_message(data.as_bytes()).unwrap_or_else(|| event["error"].to_string());
        return Err(Failure::runtime(said));
    }
    let text = event["choices"][0]["delta"]["content"]
        .as_str()
        .unwrap_or_default();
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_in_all_common_forms() {
        for url in [
            "127.0.0.1:3000",
            "http://127.0.0.1:3000",
            "http://127.0.0.1:3000/v1/",
        ] {
            assert_eq!(
                parse(url).unwrap(),
                ("127.0.0.1:3000".into(), String::new()),
                "{url}"
            );
        }
        assert_eq!(
            parse("http://h/llm/v1").unwrap(),
            ("h:80".into(), "/llm".into())
        );
        for wrong in ["https://h", "http://", "a b"] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn delta_texts_and_error_messages_are_parsed() {
        let text = r#"{"choices":[{"delta":{"content":"Hi"}}]}"#;
        assert_eq!(delta_text(text), Ok(Some("Hi".into())));
        assert_eq!(
            delta_text(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#),
            Ok(None)
        );
        let said = delta_text(r#"{"error":{"message":"worker lost"}}"#).unwrap_err();
        assert_eq!(said.message, "worker lost");
        assert_eq!(
            error_message(br#"{"error":"native","error_type":"x"}"#),
            Some("native".into())
        );
    }
}
