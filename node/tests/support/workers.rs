//! `skein worker` as a link of a simulated line.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use skein::wire::kind;
use skein::worker::{LoadReport, LoadSpec};
use skein_pipeline::frame::{MessageHeader, MessageKind, decode_fault};
use skein_pipeline::testing::Link;

/// A worker process with its stage loaded. Clones are the same process.
#[derive(Clone)]
pub struct Worker(Rc<RefCell<Process>>);

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    report: LoadReport,
    /// It has answered with a fault, or its pipe broke.
    over: bool,
}

impl Worker {
    /// Starts a worker and loads a stage into it.
    pub fn load(spec: &LoadSpec) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_skein"))
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = child.stdout.take().unwrap();
        let mut process = Process {
            child,
            input,
            output,
            report: LoadReport::default(),
            over: false,
        };
        let mut message = vec![0; 4];
        message.push(kind::LOAD);
        ciborium::into_writer(spec, &mut message).unwrap();
        let length = u32::try_from(message.len() - 4).unwrap();
        message[..4].copy_from_slice(&length.to_le_bytes());
        process.input.as_mut().unwrap().write_all(&message).unwrap();
        let mut reply = Vec::new();
        let header = process.read(&mut reply).unwrap();
        let payload = &reply[MessageHeader::SIZE..];
        match header.kind {
            MessageKind::Loaded => process.report = skein::wire::decode(payload).unwrap(),
            _ => panic!(
                "the stage could not be loaded: {}",
                String::from_utf8_lossy(payload)
            ),
        }
        Self(Rc::new(RefCell::new(process)))
    }

    /// What it said of the stage.
    pub fn report(&self) -> LoadReport {
        self.0.borrow().report.clone()
    }

    /// Whether it can take more steps.
    pub fn is_usable(&self) -> bool {
        !self.0.borrow().over
    }
}

impl Process {
    /// Reads one message and appends it, header included.
    fn read(&mut self, into: &mut Vec<u8>) -> Result<MessageHeader, std::io::Error> {
        let mut bytes = [0; MessageHeader::SIZE];
        self.output.read_exact(&mut bytes)?;
        let header = MessageHeader::decode(bytes).map_err(std::io::Error::other)?;
        into.extend(bytes);
        let start = into.len();
        into.resize(start + header.payload, 0);
        self.output.read_exact(&mut into[start..])?;
        Ok(header)
    }

    fn answer(
        &mut self,
        message: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let input = self.input.as_mut().ok_or("this worker is over")?;
        input.write_all(message)?;
        loop {
            let start = replies.len() + MessageHeader::SIZE;
            match self.read(replies)?.kind {
                MessageKind::Step | MessageKind::Sampled => return Ok(()),
                MessageKind::Fault => return Err(decode_fault(&replies[start..]).into()),
                _ => {}
            }
        }
    }
}

impl Link for Worker {
    fn deliver(
        &mut self,
        message: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut process = self.0.borrow_mut();
        let answer = process.answer(message, replies);
        process.over |= answer.is_err();
        answer
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
