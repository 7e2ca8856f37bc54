//! Where the cache server gets its objects from, and a client that compares each of their bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, ensure};
use weir_cli::compare::numbers::Random;
use weir_cli::interrupt::interrupted;

/// Bytes of an object.
pub const OBJECT_BYTES: usize = 64 << 10;
/// Connections that fetch every object once.
const FILLERS: u64 = 8;
/// A server that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn object(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..OBJECT_BYTES / 8).flat_map(|_| random.next_word().to_le_bytes()).collect()
}

/// A server of objects on loopback, while the value lives.
#[derive(Debug)]
pub struct Backend {
    /// Where it listens.
    pub addr: SocketAddr,
    asked: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Backend {
    /// Starts it on a port that is free.
    pub fn start() -> anyhow::Result<Backend> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        let (asked, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let backend = Backend { addr: listener.local_addr()?, asked: asked.clone(), ends: ends.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Relaxed) {
                    return;
                }
                let asked = asked.clone();
                // It ends with its connection.
                std::thread::spawn(move || serve(&stream, &asked));
            }
        });
        Ok(backend)
    }

    /// Objects that were asked for so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        let _ = TcpStream::connect(self.addr); // its thread waits for the next one
    }
}

/// Answers the requests of a connection, as long as they make sense.
fn serve(stream: &TcpStream, asked: &AtomicU64) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let mut requests = BufReader::new(stream);
    loop {
        let number = head(&mut requests).ok()?.0.split(' ').nth(1)?.strip_prefix('/')?.parse().ok()?;
        asked.fetch_add(1, Relaxed);
        let mut answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {OBJECT_BYTES}\r\nCache-Control: max-age=86400\r\n\r\n"
        )
        .into_bytes();
        answer.extend(object(number));
        let mut stream = stream;
        stream.write_all(&answer).ok()?;
    }
}

/// Reads the head of a message. Returns its first line, and the length of what follows.
fn head(from: &mut impl BufRead) -> anyhow::Result<(String, usize)> {
    let (mut first, mut length) = (String::new(), 0);
    from.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        ensure!(from.read_line(&mut line)? > 0, "the connection was closed");
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Ok((first, length));
        }
        if let Some(n) = line.strip_prefix("content-length:") {
            length = n.trim().parse().context("a length that is no number")?;
        }
    }
}

/// A connection to the cache server.
#[derive(Debug)]
pub struct Client {
    /// The server keeps what it is asked for under its name: that which `wrk` has for it.
    name: String,
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to the server.
    pub fn new(to: SocketAddr) -> anyhow::Result<Client> {
        let (stream, name) = (TcpStream::connect(to)?, to.to_string());
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client { name, stream: BufReader::new(stream) })
    }

    /// Fetches an object, and compares it with what it has to be.
    pub fn fetch(&mut self, number: u64) -> anyhow::Result<()> {
        write!(self.stream.get_mut(), "GET /{number} HTTP/1.1\r\nHost: {}\r\n\r\n", self.name)?;
        let (status, length) = head(&mut self.stream)?;
        ensure!(status.contains(" 200 ") && length == OBJECT_BYTES, "object {number}: {status}");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        ensure!(body == object(number), "object {number} is damaged");
        Ok(())
    }
}

/// Has the server fetch and keep objects 0 to `objects`, in order.
pub fn fill(server: SocketAddr, objects: u64) -> anyhow::Result<()> {
    let part = |first: u64| -> anyhow::Result<()> {
        let mut client = Client::new(server)?;
        for number in (first..objects).step_by(FILLERS as usize) {
            ensure!(!interrupted(), "interrupted");
            client.fetch(number)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FILLERS).map(|first| scope.spawn(move || part(first))).collect();
        let gone = |_| Err(anyhow::anyhow!("a thread of the client failed"));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(gone))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_fetched_once_and_is_what_it_has_to_be() {
        let backend = Backend::start().unwrap();
        fill(backend.addr, 20).unwrap();
        assert_eq!(backend.asked(), 20);
        assert_ne!(object(1), object(2));
    }

    #[test]
    fn another_answer_fails() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Who closes with something unread resets the connection, and the answer may be lost.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").unwrap();
        });
        let error = Client::new(addr).unwrap().fetch(7).unwrap_err();
        assert!(error.to_string().contains("object 7: HTTP/1.1 503"), "{error}");
        other.join().unwrap();
    }
}
