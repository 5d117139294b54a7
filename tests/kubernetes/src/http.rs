//! An HTTP client with one connection and one request at a time, like kube-scheduler's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// A transport.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A connection.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub text: String,
}

impl Reply {
    /// Parses the body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }
}

/// Connects without TLS.
///
/// # Errors
/// No process listens there.
pub fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Connection {
    /// Connects to this address.
    #[must_use]
    pub fn to(address: SocketAddr) -> Self {
        Self::over(connect(address).expect("a listener"))
    }

    /// Uses an open connection.
    #[must_use]
    pub fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: BufReader::new(Box::new(stream)) }
    }

    /// Sends a request and waits for the answer.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> Reply {
        self.try_request(method, path, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// The connection breaks, or the answer is not HTTP.
    pub fn try_request(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Reply> {
        let headers = [("Content-Type", "application/json".to_owned())];
        self.request_with(method, path, &headers, body)
    }

    /// Sends a request with these headers and waits for the answer.
    ///
    /// # Errors
    /// The connection breaks, or the answer is not HTTP.
    pub fn request_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &str,
    ) -> std::io::Result<Reply> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: extender\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let stream = self.stream.get_mut();
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        stream.flush()?;
        let status = self.read_line()?;
        let malformed = || std::io::Error::other(format!("not HTTP: {status:?}"));
        let number =
            status.split(' ').nth(1).and_then(|text| text.parse().ok()).ok_or_else(malformed)?;
        let (mut length, mut is_chunked) = (0, false);
        loop {
            let header = self.read_line()?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').unwrap_or((&header, ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            is_chunked |= name.eq_ignore_ascii_case("transfer-encoding");
        }
        let mut text = Vec::new();
        loop {
            if is_chunked {
                length =
                    usize::from_str_radix(&self.read_line()?, 16).map_err(std::io::Error::other)?;
            }
            let begins = text.len();
            text.resize(begins + length, 0);
            self.stream.read_exact(&mut text[begins..])?;
            if !is_chunked {
                break;
            }
            self.read_line()?;
            if length == 0 {
                break;
            }
        }
        Ok(Reply { status: number, text: String::from_utf8_lossy(&text).into_owned() })
    }

    fn read_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}
