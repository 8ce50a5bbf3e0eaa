//! Images of other formats, which QEMU's tools read for us: `qemu-nbd` gives their content over a socket that nobody else
//! reaches, in bounded memory and without a copy on a drive.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::format::Format;
use super::nbd::Nbd;
use super::{HEAD_BYTES, PART_BYTES, Part, Source, sparse};

/// An image behind `qemu-nbd`, which ends with its connection.
#[derive(Debug)]
pub(super) struct Image {
    path: PathBuf,
    identity: String,
    nbd: Nbd,
    at: u64,
}

/// A folder for the socket, until it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("onefold-{}", Uuid::new_v4()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            Failure::invalid(format!(
                "cannot make the folder '{}' for a socket: {error}; TMPDIR names another place",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind is empty.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Image {
    /// Opens an image whose first bytes were checked. Its metadata are checked as a whole first: where they lead out of
    /// the file, QEMU reads zeros.
    pub(super) fn open(
        path: &Path,
        format: Format,
        backing: bool,
        file: &str,
    ) -> Result<Self, Failure> {
        let absolute = std::path::absolute(path)
            .map_err(|e| Failure::invalid(format!("'{}': {e}", path.display())))?;
        let name = absolute.to_str().ok_or_else(|| {
            Failure::invalid(format!(
                "the path '{}' is not UTF-8, which QEMU's tools need: rename the file",
                path.display()
            ))
        })?;
        let image = match backing {
            // It looks for what it names beside itself.
            true => vec!["-f".to_owned(), format.to_string(), name.to_owned()],
            false => vec![alone(format, name)],
        };
        check(path, format, &image)?;
        let folder = Folder::new()?;
        let socket = folder.0.join("nbd");
        let mut command = Command::new("qemu-nbd");
        command
            .args(["--fork", "--read-only", "--shared=1"])
            .arg(format!("--socket={}", socket.display()))
            .args(&image);
        let output = run(command, format)?;
        if !output.status.success() {
            return Err(damaged(path, format, &output));
        }
        let nbd = Nbd::connect(&socket).map_err(|error| {
            Failure::invalid(format!(
                "qemu-nbd does not give the image '{}': {error}",
                path.display()
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            identity: format!("{format} {file}"),
            nbd,
            at: 0,
        })
    }

    fn read(&mut self, len: usize) -> Result<Vec<u8>, Failure> {
        let mut data = vec![0; len];
        self.nbd.read(self.at, &mut data).map_err(|error| {
            Failure::invalid(format!(
                "the image '{}' cannot be read at byte {}: qemu-nbd: {error}",
                self.path.display(),
                self.at
            ))
        })?;
        Ok(data)
    }
}

/// An image as QEMU's tools name it that reads no other file, however the image changes meanwhile.
fn alone(format: Format, name: &str) -> String {
    let file = json!({"driver": "file", "filename": name});
    let mut node = json!({"driver": format.name(), "file": file});
    if format == Format::Qcow2 {
        node["backing"] = Value::Null;
    }
    format!("json:{node}")
}

/// Runs one of QEMU's tools to its end.
fn run(mut command: Command, format: Format) -> Result<Output, Failure> {
    let output = command.stdin(Stdio::null()).output();
    output.map_err(|error| {
        let tool = command.get_program().to_string_lossy().into_owned();
        Failure::invalid(match error.kind() {
            ErrorKind::NotFound => format!(
                "an image of format {format} needs QEMU's `{tool}`, which is not installed: on Debian and Ubuntu \
                 `apt-get install qemu-utils`, on Fedora `dnf install qemu-img`; or convert it to a raw image elsewhere"
            ),
            _ => format!("`{tool}` cannot be run: {error}"),
        })
    })
}

/// Refuses an image whose metadata contradict themselves, or lead out of the file.
fn check(path: &Path, format: Format, image: &[String]) -> Result<(), Failure> {
    let mut command = Command::new("qemu-img");
    command.args(["check", "--output=json"]).args(image);
    let output = run(command, format)?;
    match output.status.code() {
        // Sound, clusters that nobody uses, or a format that has nothing to check.
        Some(0 | 3 | 63) => Ok(()),
        _ => Err(damaged(path, format, &output)),
    }
}

fn damaged(path: &Path, format: Format, output: &Output) -> Failure {
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut lines = errors
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let why = lines.next().unwrap_or("it does not say why");
    Failure::invalid(format!(
        "the {format} image '{}' cannot be read: it is damaged, in use, or not what it says. QEMU: {why}",
        path.display()
    ))
}

impl Source for Image {
    fn bytes(&self) -> Option<u64> {
        Some(self.nbd.bytes())
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    fn head(&mut self) -> Result<Vec<u8>, Failure> {
        self.at = 0;
        self.read(self.nbd.bytes().min(HEAD_BYTES as u64) as usize)
    }

    fn skip_to(&mut self, offset: u64) -> Result<(), Failure> {
        self.at = offset;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Part>, Failure> {
        let left = self.nbd.bytes().saturating_sub(self.at);
        let len = left.min(PART_BYTES as u64);
        if len == 0 {
            return Ok(None);
        }
        let data = self.read(len as usize)?;
        self.at += len;
        Ok(Some(match sparse::is_zero(&data) {
            true => Part::Zeros(len),
            false => Part::Data(data),
        }))
    }
}
