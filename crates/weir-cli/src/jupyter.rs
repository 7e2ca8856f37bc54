//! `weir jupyter`: a kernel for Jupyter whose Python runs under Weir, beside those that are there.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_cli::term;

use crate::cli::JupyterArgs;
use crate::set::budget;

/// Prints where Python is, if it can be a kernel of Jupyter's.
const ASK: &str = "import sys, ipykernel; print(sys.executable)";

/// Writes the kernel's folder.
pub fn jupyter(args: &JupyterArgs) -> anyhow::Result<ExitCode> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    ensure!(
        !args.name.is_empty() && args.name.chars().all(fits),
        "--name {}: letters, digits, '.', '_' and '-' are what Jupyter takes",
        args.name
    );
    args.memory.as_deref().map(budget).transpose()?;
    let weir = std::env::current_exe().context("cannot find the path of this binary")?;
    let spec = spec(&weir, &python(&args.python)?, args.memory.as_deref());
    let folder = data(args.prefix.as_deref())?.join("kernels").join(&args.name);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = folder.join("kernel.json");
    std::fs::write(&file, format!("{spec:#}\n")).with_context(|| file.display().to_string())?;
    term::print(&format!(
        "{}\nIn Jupyter: {}. To remove it: jupyter kernelspec uninstall {}\n",
        file.display(),
        spec["display_name"].as_str().unwrap_or_default(),
        args.name
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The interpreter behind whatever was named; it must have ipykernel.
fn python(named: &Path) -> anyhow::Result<PathBuf> {
    let shown = named.display();
    let asked =
        Command::new(named).args(["-c", ASK]).output().with_context(|| format!("--python {shown}"))?;
    let said = String::from_utf8_lossy(&asked.stdout);
    let path = said.lines().next().filter(|path| asked.status.success() && path.starts_with('/'));
    path.map(PathBuf::from).with_context(|| {
        format!("{shown} has no ipykernel: {shown} -m pip install ipykernel, or name another by --python")
    })
}

/// Where Jupyter looks for kernels: below a prefix, or where it keeps a user's own data.
fn data(prefix: Option<&Path>) -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let found = prefix
        .map(|prefix| prefix.join("share/jupyter"))
        .or_else(|| set("JUPYTER_DATA_DIR"))
        .or_else(|| Some(set("XDG_DATA_HOME")?.join("jupyter")))
        .or_else(|| Some(set("HOME")?.join(".local/share/jupyter")));
    found.context("HOME is not set: say --prefix")
}

/// The contents of `kernel.json`.
fn spec(weir: &Path, python: &Path, memory: Option<&str>) -> Value {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut argv = vec![text(weir), "run".to_owned(), "--quiet".to_owned()];
    argv.extend(memory.into_iter().flat_map(|memory| ["--memory".to_owned(), memory.to_owned()]));
    argv.extend(["--".to_owned(), text(python)]);
    argv.extend(["-m", "ipykernel_launcher", "-f", "{connection_file}"].map(str::to_owned));
    let budget = memory.map_or(String::new(), |memory| format!(" in {memory}"));
    json!({ "argv": argv, "display_name": format!("Python under Weir{budget}"), "language": "python" })
}
