//! A real cache server, varnish, with its objects in a mapped file: started for the bench, on loopback, in a
//! folder of its own.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weir_cli::interrupt::interrupted;

use super::backend::Client;

/// How long it may take to compile its configuration, start, and answer.
const START_PATIENCE: Duration = Duration::from_secs(60);
const END_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// Folders of programs for administrators, which are not in everybody's PATH.
const MORE_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// Name of the main thread of the process that serves.
const WORKER: &str = "cache-main";

/// The programs that this half needs.
#[derive(Debug)]
pub struct Tools {
    /// The server to start.
    pub varnishd: PathBuf,
    /// What asks it.
    pub wrk: PathBuf,
}

impl Tools {
    /// Finds them, or says what to install.
    pub fn find() -> anyhow::Result<Tools> {
        let found = ["varnishd", "wrk", "cc"].map(|name| (name, find(name)));
        let missing: Vec<&str> =
            found.iter().filter(|(_, path)| path.is_none()).map(|(name, _)| *name).collect();
        let [(_, Some(varnishd)), (_, Some(wrk)), (_, Some(_))] = found else {
            bail!(
                "{} missing; install what is needed: apt-get install --no-install-recommends varnish wrk gcc \
                 libc6-dev",
                missing.join(", ")
            );
        };
        Ok(Tools { varnishd, wrk })
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(MORE_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| weir_os::host::may_execute(file).is_ok())
}

/// What the server is to be.
#[derive(Debug)]
pub struct Setup<'a> {
    /// Folder for its file and all else; gone with it.
    pub folder: PathBuf,
    /// Where it gets objects.
    pub backend: SocketAddr,
    /// Bytes of the file.
    pub store_bytes: u64,
    /// Advice that it gives for its mapping.
    pub advice: &'a str,
}

/// A server that runs, while the value lives.
#[derive(Debug)]
pub struct Server {
    manager: Child,
    /// The process that serves.
    pub worker: u32,
    /// Where it listens.
    pub addr: SocketAddr,
    folder: PathBuf,
}

impl Server {
    /// Starts it: `command` becomes varnishd. Returns when it answers.
    pub fn start(mut command: Command, setup: &Setup<'_>) -> anyhow::Result<Server> {
        fs::create_dir_all(&setup.folder).with_context(|| setup.folder.display().to_string())?;
        let log = setup.folder.join("log");
        let said = File::create(&log)?;
        // A port that was free a moment ago.
        let addr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let store = setup.folder.join("store");
        // Debugging mode: it ends when its stdin is closed, also where the bench is killed.
        command.args(["-d", "-j", "none", "-l", "8m", "-t", "86400", "-p", "thread_pool_min=50", "-n"]);
        command.arg(setup.folder.join("work")).arg("-a").arg(addr.to_string());
        command.arg("-b").arg(setup.backend.to_string());
        command.arg("-s").arg(format!("file,{},{},4k,{}", store.display(), setup.store_bytes, setup.advice));
        let manager = command
            .stdin(Stdio::piped())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let mut server = Server { manager, worker: 0, addr, folder: setup.folder.clone() };
        let failed = |e: anyhow::Error| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            e.context(format!("varnishd does not start; it said: {}", said.trim()))
        };
        server.worker = server.wait().map_err(failed)?;
        Ok(server)
    }

    fn wait(&mut self) -> anyhow::Result<u32> {
        self.manager.stdin.as_mut().context("no stdin")?.write_all(b"start\n")?;
        let started = Instant::now();
        loop {
            ensure!(!interrupted(), "interrupted");
            if let Some(status) = self.manager.try_wait()? {
                bail!("it ended ({status})");
            }
            // Its socket listens long before it serves.
            let answers = || Client::new(self.addr)?.fetch(0);
            if let Some(worker) = worker_of(self.manager.id())
                && answers().is_ok()
            {
                return Ok(worker);
            }
            ensure!(started.elapsed() < START_PATIENCE, "no answer in {} s", START_PATIENCE.as_secs());
            std::thread::sleep(PAUSE);
        }
    }

    /// Fails where the serving process is another one by now: it has begun again without its objects.
    pub fn is_the_same(&self) -> anyhow::Result<()> {
        ensure!(worker_of(self.manager.id()) == Some(self.worker), "varnish's worker has died");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.manager.stdin.take());
        let started = Instant::now();
        while started.elapsed() < END_PATIENCE && matches!(self.manager.try_wait(), Ok(None)) {
            std::thread::sleep(PAUSE);
        }
        // The worker ends when its manager is gone.
        let _ = self.manager.kill();
        let _ = self.manager.wait();
        let gone = || self.worker == 0 || !Path::new(&format!("/proc/{}", self.worker)).exists();
        while started.elapsed() < 2 * END_PATIENCE && !gone() {
            std::thread::sleep(PAUSE);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The child of a manager that serves.
fn worker_of(manager: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{manager}/task/{manager}/children")).ok()?;
    let mut ids = children.split_ascii_whitespace().filter_map(|id| id.parse().ok());
    ids.find(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim_end() == WORKER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_to_install() {
        match Tools::find() {
            Ok(tools) => assert!(tools.varnishd.ends_with("varnishd") && tools.wrk.ends_with("wrk")),
            Err(e) => {
                assert!(e.to_string().contains("apt-get install --no-install-recommends varnish"), "{e}")
            }
        }
        assert!(find("sh").is_some() && find("no-such-program-of-anybody").is_none());
    }

    #[test]
    fn a_program_that_ends_at_once_fails_with_what_it_said_and_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("weir-varnish-{}", std::process::id()));
        let backend = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let setup = Setup { folder: folder.clone(), backend, store_bytes: 1 << 20, advice: "normal" };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo no such advice; exit 2", "sh"]);
        let error = format!("{:#}", Server::start(command, &setup).unwrap_err());
        assert!(error.contains("no such advice"), "{error}");
        assert!(!folder.exists());
    }
}
