//! As much of HTTP as three answers need: one request a connection, read within bounds of size and time.
//!
//! A web site must not read what is served here by giving its own name this machine's address (DNS
//! rebinding). It would have to ask by that name: so only addresses and `localhost` are answered to.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a request, its headers among them.
const REQUEST_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// Time for a client to ask, and to take what it is sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Without what stands behind a question mark.
    pub path: String,
    /// The headers of the answer alone.
    pub head: bool,
    /// The newer format of Prometheus.
    pub open_metrics: bool,
}

/// What is sent back.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    status: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    /// One of some content type.
    pub fn new(status: u16, kind: &'static str, body: String) -> Answer {
        Answer { status, kind, body }
    }

    /// One for people.
    pub fn text(status: u16, body: &str) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", body.to_owned())
    }
}

/// Reads what a client asks for; the inner error is what it is told in place of an answer.
pub fn read(mut connection: &TcpStream) -> io::Result<Result<Request, Answer>> {
    let end = Instant::now() + PATIENCE;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Answer::text(408, "the request took too long\n")));
        }
        connection.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        let len = match connection.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            Err(e) => return Err(e),
        };
        bytes.extend_from_slice(&part[..len]);
        if let Some(parsed) = parse(&bytes) {
            return Ok(parsed);
        }
        if bytes.len() > REQUEST_BYTES_MAX {
            return Ok(Err(Answer::text(431, "the request is too large\n")));
        }
    }
}

/// A request as it stands; `None` where more of it has to come.
fn parse(bytes: &[u8]) -> Option<Result<Request, Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(Err(Answer::text(400, "this is no request\n"))),
    }
    let header = |name: &str| {
        let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value).into_owned())
    };
    if !header("host").is_some_and(|host| is_own(&host)) {
        let why = "ask by address, or by localhost: other names are not answered to\n";
        return Some(Err(Answer::text(421, why)));
    }
    let head = match parsed.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Some(Err(Answer::text(405, "GET and HEAD are answered\n"))),
    };
    let path = parsed.path.unwrap_or("/");
    let path = path.split_once('?').map_or(path, |(path, _)| path).to_owned();
    let open_metrics = header("accept").is_some_and(|kinds| kinds.contains("application/openmetrics-text"));
    Some(Ok(Request { path, head, open_metrics }))
}

/// Whether a name is an address, or the local machine's, with or without a port.
fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

/// Sends an answer, or its headers alone.
pub fn write(mut connection: &TcpStream, answer: &Answer, head: bool) -> io::Result<()> {
    let Answer { status, kind, body } = answer;
    let words = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let mut text = format!(
        "HTTP/1.1 {status} {words}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Allow: GET, HEAD\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
         connect-src 'self'; frame-ancestors 'none'\r\n\r\n",
        body.len()
    );
    if !head {
        text += body;
    }
    connection.write_all(text.as_bytes())
}

/// There are too many connections already.
pub fn refuse(connection: &TcpStream) -> io::Result<()> {
    connection.set_write_timeout(Some(Duration::from_millis(100)))?;
    write(connection, &Answer::text(503, "too many connections\n"), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> u16 {
        match parse(request.as_bytes()) {
            Some(Ok(_)) => 200,
            Some(Err(answer)) => answer.status,
            None => 0,
        }
    }

    #[test]
    fn requests_are_read_and_others_refused() {
        let asked = parse(
            b"HEAD /metrics?x=1 HTTP/1.1\r\nHost: [::1]:9090\r\nAccept: application/openmetrics-text; \
            version=1.0.0,text/plain;q=0.5\r\n\r\n",
        );
        let wanted = Request { path: "/metrics".to_owned(), head: true, open_metrics: true };
        assert_eq!(asked, Some(Ok(wanted)));
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 200);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost\r\n"), 0);
        assert_eq!(status("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 421);
        assert_eq!(status("\u{1}\u{2}\r\n\r\n"), 400);
    }

    #[test]
    fn names_that_a_web_site_could_have_are_foreign() {
        for own in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9090", "[::1]", "[::1]:9090", "::1"]
        {
            assert!(is_own(own), "{own}");
        }
        for foreign in
            ["", "evil.example", "evil.example:9090", "127.0.0.1.evil.example", "localhost.evil", ":80"]
        {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
