//! `weir serve`: what processes under Weir count, for Prometheus and for a browser.

mod http;
mod metrics;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use weir_cli::term;

use crate::cli::ServeArgs;
use crate::live::{Live, Shown};
use crate::stat;
use http::{Answer, Request};

/// Connections at a time; one more is told to come later.
const CONNECTIONS_MAX: usize = 32;
/// How long it waits after a connection that could not be had.
const PAUSE: Duration = Duration::from_millis(50);
/// One page, with all that it needs.
const PAGE: &str = include_str!("page.html");

/// Answers until it is ended.
pub fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let listener = match TcpListener::bind(args.listen) {
        Ok(listener) => listener,
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => bail!(
            "another program listens on {} already; name another port, or 0 for a free one: --listen {}",
            args.listen,
            SocketAddr::new(args.listen.ip(), 0)
        ),
        Err(e) => bail!("cannot listen on {}: {e}", args.listen),
    };
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        eprintln!("weir: whoever reaches {address} can read the names and counters of your programs");
    }
    term::print(&format!("http://{address}/ for a browser, http://{address}/metrics for Prometheus\n"))?;
    accept(&listener);
    Ok(ExitCode::SUCCESS)
}

fn accept(listener: &TcpListener) {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    for connection in listener.incoming() {
        // A client that has gone already, or no descriptors for a moment: the next one may do better.
        let Ok(connection) = connection else {
            thread::sleep(PAUSE);
            continue;
        };
        if OPEN.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            let _ = http::refuse(&connection);
            continue;
        }
        let talk = move || {
            talk(&connection);
            OPEN.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().spawn(talk).is_err() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One request, one answer. Nobody is told of clients that go away.
fn talk(connection: &TcpStream) {
    let answered = http::read(connection).map(|request| match request {
        Ok(request) => (answer(&request), request.head),
        Err(refusal) => (refusal, false),
    });
    if let Ok((answer, head)) = answered {
        let _ = http::write(connection, &answer, head);
    }
}

fn answer(request: &Request) -> Answer {
    match request.path.as_str() {
        "/" => Answer::new(200, "text/html; charset=utf-8", PAGE.to_owned()),
        "/stat.json" => of_all(|all| {
            let objects = Value::Array(all.iter().map(stat::object).collect());
            Answer::new(200, "application/json", objects.to_string())
        }),
        "/metrics" => of_all(|all| {
            let kind = metrics::CONTENT_TYPES[usize::from(request.open_metrics)];
            Answer::new(200, kind, metrics::text(all, request.open_metrics))
        }),
        _ => Answer::text(404, "there are /, /metrics and /stat.json\n"),
    }
}

fn of_all(answer: impl FnOnce(&[Shown]) -> Answer) -> Answer {
    match Live::all() {
        // Those that end meanwhile, or cannot be read, are left out.
        Ok((all, _)) => answer(&all),
        Err(e) => Answer::text(500, &format!("the processes cannot be listed: {e}\n")),
    }
}
