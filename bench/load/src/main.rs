//! A load client that costs little: raw sockets, one connection per request, one thread.
//!
//! It streams the same request `requests` times over at most `streams` connections at once and
//! prints one line of JSON: tokens per second, time to first token, gaps between tokens. Tokens
//! are SSE events other than `[DONE]`; several that arrive in one read share their time.

use clap::{Parser, ValueEnum};
use serde_json::json;
use std::{error::Error, sync::Arc, time::Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

mod events;
mod stats;

use events::EventCounter;
use stats::{Stream, summary};

/// Which API the requests speak.
#[derive(Clone, Copy, ValueEnum)]
enum Api {
    Generate,
    Chat,
    Completions,
}

#[derive(Parser)]
struct Args {
    /// Host and port of the server.
    #[arg(long, default_value = "127.0.0.1:3000")]
    address: String,
    /// API to speak.
    #[arg(long, value_enum, default_value = "generate")]
    api: Api,
    /// Connections at once.
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Requests in all; 0 = one per stream.
    #[arg(long, default_value_t = 0)]
    requests: usize,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 256)]
    tokens: u32,
    /// Words of each prompt; each prompt begins with a different one.
    #[arg(long, default_value_t = 20)]
    words: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Arc::new(Args::parse());
    let permits = Arc::new(Semaphore::new(args.streams));
    let began = Instant::now();
    let mut tasks = Vec::new();
    for index in 0..args.requests.max(args.streams) {
        let permit = permits.clone().acquire_owned().await?;
        let args = args.clone();
        tasks.push(tokio::spawn(async move {
            let stream = drive(&args, index).await;
            drop(permit);
            stream.map_err(|error| error.to_string())
        }));
    }
    let mut streams = Vec::new();
    for task in tasks {
        streams.push(task.await??);
    }
    write_line(&summary(&streams, began.elapsed()).to_string())?;
    Ok(())
}

/// Runs one request to its end.
async fn drive(args: &Args, index: usize) -> Result<Stream, Box<dyn Error>> {
    let request = request(args, index);
    let mut stream = Stream::begun(Instant::now());
    let mut socket = TcpStream::connect(&args.address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(request.as_bytes()).await?;
    let mut buffer = vec![0; 16 << 10];
    let mut counter = EventCounter::default();
    let mut head = Vec::new();
    loop {
        let read = socket.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        if head.len() < 12 {
            head.extend_from_slice(&buffer[..read.min(12)]);
        }
        stream.tokens(counter.count(&buffer[..read]), Instant::now());
    }
    if !head.starts_with(b"HTTP/1.1 200") {
        return Err(String::from_utf8_lossy(&head).into_owned().into());
    }
    Ok(stream)
}

fn request(args: &Args, index: usize) -> String {
    let text = prompt(args.words, index);
    let (path, body) = match args.api {
        Api::Generate => (
            "/generate_stream",
            json!({"inputs": text, "parameters": {"max_new_tokens": args.tokens}}),
        ),
        Api::Chat => (
            "/v1/chat/completions",
            json!({"model": "penstock", "messages": [{"role": "user", "content": text}],
                   "max_tokens": args.tokens, "stream": true, "ignore_eos": true}),
        ),
        Api::Completions => (
            "/v1/completions",
            json!({"model": "penstock", "prompt": text, "max_tokens": args.tokens,
                   "stream": true, "ignore_eos": true, "temperature": 0}),
        ),
    };
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        args.address,
        body.len()
    )
}

fn prompt(words: usize, index: usize) -> String {
    const WORDS: [&str; 8] = [
        "the", "river", "gate", "opens", "and", "water", "runs", "down",
    ];
    let mut text = format!("{index}");
    for word in 1..words {
        text.push(' ');
        text.push_str(WORDS[(index + word) % WORDS.len()]);
    }
    text
}

fn write_line(line: &str) -> std::io::Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}")
}
