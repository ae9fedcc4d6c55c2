//! A load client that costs little: raw sockets, one connection per request, one thread.
//!
//! Without `--jobs` it streams like requests and prints one line of JSON: tokens per second, time
//! to first token, gaps between tokens. With `--jobs` it runs the jobs of a file and prints a line
//! for each request: when it was sent and when each of its tokens arrived. Tokens that arrive in
//! one read share their time.

use clap::Parser;
use std::{
    error::Error,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

mod events;
mod job;
mod record;

use events::{Event, Response};
use job::{Api, Job, Prompt, Server, Turn};
use record::{Record, summary};

/// Sends requests and tells when their tokens arrived.
#[derive(Parser)]
struct Args {
    /// Host and port of the server.
    #[arg(long, default_value = "127.0.0.1:3000")]
    address: String,
    /// API to speak.
    #[arg(long, value_enum, default_value = "generate")]
    api: Api,
    /// Name of the model.
    #[arg(long, default_value = "penstock")]
    model: String,
    /// Jobs at once; 0 = no bound.
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Jobs to run, one JSON object a line: {"at": S, "turns": [{"prompt": P, "tokens": N, "fields": {}}]}
    #[arg(long)]
    jobs: Option<PathBuf>,
    /// Requests in all, without --jobs; 0 = one per stream.
    #[arg(long, default_value_t = 0)]
    requests: usize,
    /// Tokens of each answer, without --jobs.
    #[arg(long, default_value_t = 256)]
    tokens: u32,
    /// Words of each prompt, without --jobs; each prompt begins with a different one.
    #[arg(long, default_value_t = 20)]
    words: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let jobs = match &args.jobs {
        Some(path) => read_jobs(path)?,
        None => job::alike(args.requests.max(args.streams), args.words, args.tokens),
    };
    let server = Arc::new(Server {
        address: args.address,
        api: args.api,
        model: args.model,
    });
    let began = Instant::now();
    let records = run(jobs, &server, args.streams, began).await?;
    let seconds = began.elapsed().as_secs_f64();
    let mut out = BufWriter::new(std::io::stdout());
    if args.jobs.is_some() {
        for record in &records {
            serde_json::to_writer(&mut out, record)?;
            writeln!(out)?;
        }
    } else if let Some(error) = records.iter().find_map(|record| record.error.as_ref()) {
        return Err(error.clone().into());
    } else {
        writeln!(out, "{}", summary(&records, seconds))?;
    }
    Ok(out.flush()?)
}

fn read_jobs(path: &Path) -> Result<Vec<Job>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let jobs: Result<Vec<Job>, _> = text.lines().map(serde_json::from_str).collect();
    Ok(jobs?)
}

/// Runs all jobs in their order, at most `streams` at once, each no earlier than its time.
async fn run(
    jobs: Vec<Job>,
    server: &Arc<Server>,
    streams: usize,
    began: Instant,
) -> Result<Vec<Record>, Box<dyn Error>> {
    let most = if streams == 0 { jobs.len() } else { streams };
    let permits = Arc::new(Semaphore::new(most.max(1)));
    let mut tasks = Vec::new();
    for (index, job) in jobs.into_iter().enumerate() {
        let at = began + Duration::from_secs_f64(job.at);
        if at > Instant::now() {
            tokio::time::sleep_until(at.into()).await;
        }
        let permit = permits.clone().acquire_owned().await?;
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            let records = converse(&server, index, &job, began).await;
            drop(permit);
            records
        }));
    }
    let mut records = Vec::new();
    for task in tasks {
        records.extend(task.await?);
    }
    Ok(records)
}

/// Runs the requests of one job; ends at the first that fails.
async fn converse(server: &Server, job: usize, turns: &Job, began: Instant) -> Vec<Record> {
    let (mut said, mut records) = (String::new(), Vec::new());
    for (index, turn) in turns.turns.iter().enumerate() {
        let mut record = Record {
            job,
            turn: index,
            ..Record::default()
        };
        let answer = drive(server, &said, turn, began, &mut record).await;
        match (answer, &turn.prompt) {
            (Ok(answer), Prompt::Text(text)) => said.extend([text.as_str(), &answer]),
            (Ok(_), Prompt::Ids(_)) => {}
            (Err(error), _) => record.error = Some(error.to_string()),
        }
        let failed = record.error.is_some();
        records.push(record);
        if failed {
            break;
        }
    }
    records
}

/// Runs one request to its end and returns the answer's text.
async fn drive(
    server: &Server,
    said: &str,
    turn: &Turn,
    began: Instant,
    record: &mut Record,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let request = server.request(said, turn);
    let (mut response, mut answer, mut done, mut usage) =
        (Response::default(), String::new(), false, None);
    let mut buffer = vec![0; 16 << 10];
    record.sent = began.elapsed().as_secs_f64();
    let mut socket = TcpStream::connect(&server.address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(request.as_bytes()).await?;
    while !done {
        let read = socket.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        let now = began.elapsed().as_secs_f64();
        response.read(&buffer[..read], &mut |event| match event {
            Event::Token(text) => {
                record.arrivals.push(now);
                answer.push_str(text);
            }
            Event::Usage(reported) => usage = Some(reported),
            Event::Failed(why) => record.error = Some(why.to_owned()),
            Event::Done => done = true,
        });
    }
    record.tokens = usage.map_or(record.arrivals.len(), |usage| usage.completion_tokens);
    record.prompt_tokens = usage.map_or(0, |usage| usage.prompt_tokens);
    match response.refusal() {
        Some(refusal) => Err(refusal.into()),
        None if !done && !response.may_end() => {
            Err("the connection ended in the midst of the answer".into())
        }
        None if record.arrivals.is_empty() && record.error.is_none() => {
            Err("the answer ended before its first token".into())
        }
        None => Ok(answer),
    }
}
