//! Cost of frequent scrapes of the metrics endpoint.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::setup::{now, sleep_until};
use super::shares::{SATURATING, cpu_seconds};
use super::{Bench, Figures};

/// Scrapes per second, each with its own connection: far more than a Prometheus makes.
const RATE: f64 = 100.0;

/// Measures the CPU that scrapes add to the monitor, in percent of a core. Two containers exist, so
/// that their rows are in the text. They are idle, so that turns do not disturb the measurement.
pub(super) fn cost(bench: &mut Bench) -> Result<Figures> {
    // The port was free just now.
    let at = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut setup = bench.setup_with(&format!("metrics = \"{at}\"\n"))?;
    let mut tenants = [setup.join(&SATURATING)?, setup.join(&SATURATING)?];
    for tenant in &mut tenants {
        tenant.run(0.2, super::STEP)?;
    }
    let monitor = setup.fixture.monitor();
    let seconds = bench.seconds();
    let mut parts = Vec::new();
    // Alternating, so that changes of the machine affect both.
    for scraped in [false, true, false, true] {
        let (before, start) = (cpu_seconds(monitor)?, now());
        let mut count = 0.0;
        while now() < start + seconds {
            if scraped {
                scrape(at)?;
            }
            count += 1.0;
            sleep_until(start + count / RATE);
        }
        parts.push((cpu_seconds(monitor)? - before) / (now() - start));
    }
    let added = (parts[1] + parts[3] - parts[0] - parts[2]) / 2.0;
    eprintln!("    scrape_cpu_pct: {:.2} % of a core without", 50.0 * (parts[0] + parts[2]));
    Ok(vec![("scrape_cpu_pct", (100.0 * added).into())])
}

fn scrape(at: std::net::SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(at).context("no endpoint")?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(
        text.contains("cgpu_build_info") && text.contains("tenant-2"),
        "not the metrics: {text}"
    );
    Ok(())
}
