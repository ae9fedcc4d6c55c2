//! Plots the shares of three tenants in virtual time:
//! `cargo run -p penstock-scheduler --example tenants > docs/tenants.svg`
#![allow(
    dead_code,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the server of the tests has more"
)]

#[path = "../tests/simulation/random.rs"]
mod random;
#[path = "../tests/pace/server.rs"]
mod server;
#[path = "../tests/pace/times.rs"]
mod times;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use server::Server;

/// A tenant of the plot.
struct Tenant {
    name: &'static str,
    colour: &'static str,
    weight: u32,
    /// Second in which all of its requests come.
    second: u64,
    requests: u32,
}

const TENANTS: [Tenant; 3] = [
    Tenant {
        name: "greedy",
        colour: "#c65d57",
        weight: 1,
        second: 0,
        requests: 6_400,
    },
    Tenant {
        name: "polite",
        colour: "#4c8c6a",
        weight: 1,
        second: 5,
        requests: 200,
    },
    Tenant {
        name: "of weight 2",
        colour: "#4f74a8",
        weight: 2,
        second: 10,
        requests: 250,
    },
];
const SECOND: u64 = 1_000_000;
const SECONDS: u64 = 30;
/// Microseconds of a column of the plot.
const COLUMN: u64 = SECOND / 2;
const PROMPT: u32 = 256;
const ANSWER: u32 = 128;
/// Pixels of the plot, and around it.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 200.0;
const MARGIN: f64 = 40.0;

fn main() -> io::Result<()> {
    let mut server = Server::shared(32);
    for (number, tenant) in (0..).zip(&TENANTS) {
        server.stream(tenant.second * SECOND);
        for _ in 0..tenant.requests {
            server.arrive_for((number, tenant.weight), PROMPT, ANSWER);
        }
    }
    server.stream(SECONDS * SECOND);
    io::stdout().write_all(plot(&shares(&server)).as_bytes())
}

/// Returns, for each column, the share of each tenant in the generated tokens.
fn shares(server: &Server) -> Vec<[f64; TENANTS.len()]> {
    let mut columns = vec![[0.0; TENANTS.len()]; (SECONDS * SECOND / COLUMN) as usize];
    for client in server.clients.values() {
        for at in &client.tokens {
            if let Some(column) = columns.get_mut((at / COLUMN) as usize) {
                column[client.tenant as usize] += 1.0;
            }
        }
    }
    for column in &mut columns {
        let sum: f64 = column.iter().sum();
        column.iter_mut().for_each(|tokens| *tokens /= sum.max(1.0));
    }
    columns
}

fn plot(columns: &[[f64; TENANTS.len()]]) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let step = WIDTH / columns.len() as f64;
    for (at, column) in columns.iter().enumerate() {
        let (x, mut y) = (MARGIN + at as f64 * step, MARGIN);
        for (tenant, share) in TENANTS.iter().zip(column) {
            let (tall, colour) = (share * HEIGHT, tenant.colour);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{step:.1}\" height=\"{tall:.1}\" \
                 fill=\"{colour}\"/>"
            );
            y += tall;
        }
    }
    for (number, tenant) in (0..).zip(&TENANTS) {
        let Tenant {
            name,
            colour,
            requests,
            second,
            ..
        } = tenant;
        let x = MARGIN + f64::from(number) * WIDTH / 3.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.0}\" y=\"25\" fill=\"{colour}\">{name}: {requests} requests at {second} s</text>"
        );
    }
    for second in (0..=SECONDS).step_by(5) {
        let x = MARGIN + WIDTH * second as f64 / SECONDS as f64;
        let y = HEIGHT + MARGIN + 18.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.0}\" y=\"{y}\" text-anchor=\"middle\">{second} s</text>"
        );
    }
    for percent in [0, 50, 100] {
        let y = MARGIN + HEIGHT * (1.0 - f64::from(percent) / 100.0) + 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"34\" y=\"{y:.0}\" text-anchor=\"end\">{percent}</text>"
        );
    }
    svg + "</svg>\n"
}
