//! Trial.
use crate::server::{Server, Speed, percentile};

fn env(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or(default.into())
}

fn speed() -> Speed {
    match env("SPEED", "h200").as_str() {
        "h100" => Speed::H100,
        "sus" => Speed::Sustained,
        _ => Speed::Burst,
    }
}

fn server() -> Server {
    let mut server = Server::new(speed());
    server.transport = crate::server::Transport {
        launch: 1_000,
        reply: 400,
    };
    server.arrive(16, 1);
    server.answer_all();
    server.closed_loop((32, 32), (128, 16), |_, _| ());
    server
}

/// (mean TTFT, p99, ITL p99, tokens/s)
fn figures(server: &Server, warm: usize, began: u64, extra: f64) -> [f64; 4] {
    let clients = || server.clients.values().skip(warm);
    let firsts: Vec<_> = clients().filter_map(|client| client.waited()).collect();
    let pairs = clients().flat_map(|client| client.tokens.windows(2));
    let gaps: Vec<_> = pairs.map(|pair| pair[1] - pair[0]).collect();
    let tokens: usize = clients().map(|client| client.tokens.len()).sum();
    [
        firsts.iter().sum::<u64>() as f64 / firsts.len() as f64 / 1e3 + extra,
        percentile(&firsts, 99) as f64 / 1e3 + extra,
        percentile(&gaps, 99) as f64 / 1e3,
        tokens as f64 * 1e6 / (server.now - began) as f64,
    ]
}

#[test]
fn trial() {
    let seeds: Vec<u64> = env("SEEDS", "3 4 5 6 7 8 9 10")
        .split(' ')
        .map(|s| s.parse().unwrap())
        .collect();
    let extra: f64 = env("EXTRA", "2").parse().unwrap();
    for rate in env("RATES", "8 16 24 32 40")
        .split(' ')
        .filter(|r| !r.is_empty())
    {
        let mut all = Vec::new();
        for seed in &seeds {
            let mut server = server();
            let (warm, began) = (server.clients.len(), server.now + 1_000_000);
            let file = std::fs::read_to_string(format!("/tmp/pace/traces/{rate}-{seed}")).unwrap();
            let first = server.steps.len();
            for line in file.lines() {
                let mut words = line.split(' ').map(|w| w.parse::<u64>().unwrap());
                let (at, prompt, answer) = (
                    words.next().unwrap(),
                    words.next().unwrap(),
                    words.next().unwrap(),
                );
                server.stream(began + at);
                server.arrive(prompt as u32, answer as u32);
            }
            server.answer_all();
            all.push(figures(&server, warm, began, extra));
            if env("VERBOSE", "0") == "1" {
                println!("  seed {seed}: {:.1?}", all.last().unwrap());
                let mut sizes = std::collections::BTreeMap::new();
                for step in &server.steps[first..] {
                    if step.prompt > 0 {
                        let e = sizes.entry(step.decodes + step.prompt).or_insert(0);
                        *e += 1;
                    }
                }
                let mixed: i32 = sizes.values().sum();
                let mut buckets = std::collections::BTreeMap::new();
                for (size, n) in sizes {
                    *buckets
                        .entry((size as u32).div_ceil(128) * 128)
                        .or_insert(0) += n;
                }
                println!(
                    "    {} steps, {mixed} mixed: {buckets:?}",
                    server.steps.len() - first
                );
            }
        }
        let n = all.len() as f64;
        let mean = |i: usize| all.iter().map(|f| f[i]).sum::<f64>() / n;
        let most = |i: usize| all.iter().map(|f| f[i]).fold(0.0, f64::max);
        println!(
            "rate {rate}: TTFT {:.1} / {:.1} (max {:.1} / {:.1}), ITL p99 {:.1} (max {:.1}), {:.0} tok/s",
            mean(0),
            mean(1),
            most(0),
            most(1),
            mean(2),
            most(2),
            mean(3)
        );
    }
    for row in env("LOOPS", "c32 c64 c256 c512").split(' ') {
        let (clients, shape) = match row {
            "c32" => ((32, 128), (512, 256)),
            "c64" => ((64, 256), (2_048, 128)),
            "c128" => ((128, 384), (512, 256)),
            "c256" => ((256, 768), (1_024, 256)),
            "c512" => ((512, 1_536), (256, 256)),
            _ => continue,
        };
        let mut server = server();
        let (warm, began) = (server.clients.len(), server.now);
        server.closed_loop(clients, shape, |_, _| ());
        let f = figures(&server, warm, began, extra);
        println!(
            "{row}: {:.0} tok/s, TTFT {:.0} / {:.0}, ITL p99 {:.1}",
            f[3], f[0], f[1], f[2]
        );
    }
    if env("LONG", "1") == "1" {
        let mut server = server();
        for _ in 0..32 {
            server.arrive(512, 4_500);
        }
        let from = server.now + 4_000_000;
        server.stream(from);
        let quiet = percentile(&server.gaps(512, from - 3_000_000), 50);
        server.send_long_prompts(from);
        let loaded = server.gaps(512, from);
        let waits: Vec<_> = server.long().filter_map(|c| c.waited()).collect();
        println!(
            "long: {:.2}, TTFT p99 {:.2} s ({})",
            percentile(&loaded, 99) as f64 / quiet as f64,
            percentile(&waits, 100) as f64 / 1e6,
            waits.len()
        );
    }
}
