//! A stage's side of the line protocol: reserve, prepare, serve, and leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::hops::{BoxIo, say_hello};
use super::inbox::Inbox;
use super::messages::{Hello, Offer, Progress, StageReport, ToHead, ToStage};
use super::relay::relay;
use crate::agent::Shared;
use crate::agent::memory::Reservation;
use crate::agent::prepare::{self, StageRequest};
use crate::host::Worker;
use crate::wire::{self, kind};

/// The head offers as soon as it has the stream.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// A reservation that is not committed by then is free again.
const RESERVATION: Duration = Duration::from_secs(30);
/// The head pings every [`super::build::PING_EVERY`]; this long without a word and the line is given up.
const SILENCE: Duration = Duration::from_secs(60);
/// Other stages may still pull and compile when this one is ready.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2000);
/// The head lets go of the stream at once when it hears that a stage is gone.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves one control stream of a line until it ends. `from` is the head's peer id.
pub async fn serve(shared: Arc<Shared>, from: String, io: BoxIo) {
    let (reader, mut writer) = tokio::io::split(io);
    let mut inbox = Inbox::read(reader);
    let outcome = attend(&shared, &from, &mut inbox, &mut writer).await;
    shared.changed.notify_one();
    if let Err(reason) = outcome {
        tracing::info!(head = %from, "left a line: {reason}");
        let _ = wire::send(&mut writer, kind::CONTROL, &ToHead::Gone { reason }).await;
    }
    // The last word must arrive before the stream is let go.
    let _ = writer.shutdown().await;
    let _ = tokio::time::timeout(FAREWELL, async { while inbox.recv().await.is_some() {} }).await;
}

async fn attend(
    shared: &Arc<Shared>,
    from: &str,
    inbox: &mut Inbox<ToStage>,
    writer: &mut (impl tokio::io::AsyncWrite + Unpin + Send),
) -> Result<(), String> {
    let offer = match tokio::time::timeout(OFFER_TIMEOUT, inbox.recv()).await {
        Ok(Some(ToStage::Offer(offer))) => offer,
        Ok(Some(_)) => return Err("the head did not begin with an offer".into()),
        Ok(None) | Err(_) => return Ok(()),
    };
    // The transport says who the head is; the offer only repeats it for the return hop.
    if offer.head != from {
        return Err("the offer names another head than the peer that made it".into());
    }
    let reservation = match reserve(shared, &offer).await {
        Ok(reservation) => reservation,
        Err(refusal) => {
            tracing::info!(head = %from, ?refusal, "refused an offer");
            let _ = wire::send(writer, kind::CONTROL, &refusal).await;
            return Ok(());
        }
    };
    let reserved = ToHead::Reserved {
        bytes: reservation.bytes,
        expires_s: RESERVATION.as_secs() as u32,
    };
    send(writer, &reserved).await?;
    match tokio::time::timeout(RESERVATION, inbox.recv()).await {
        Ok(Some(ToStage::Commit)) => {}
        Ok(Some(ToStage::Release) | None) => return Ok(()),
        Ok(Some(_)) => return Err("the head did not commit after the reservation".into()),
        Err(_) => return Err("the reservation expired".into()),
    }

    // Expected before anybody can know that this stage is ready.
    let hello = Hello {
        line: offer.line,
        epoch: offer.epoch,
        to: offer.stage,
    };
    let inbound = shared.hops.expect(hello, &offer.previous);
    let (worker, report) = match prepare_while_listening(shared, &offer, inbox, writer).await? {
        Some(ready) => ready,
        None => return Ok(()),
    };
    let guard = shared.serving.enter(&offer, &report);
    send(writer, &ToHead::Loaded(report)).await?;

    match tokio::time::timeout(CONNECT_TIMEOUT, inbox.recv()).await {
        Ok(Some(ToStage::Connect)) => {}
        Ok(Some(ToStage::Release) | None) => return Ok(()),
        Ok(Some(_)) => return Err("the head did not connect a loaded stage".into()),
        Err(_) => return Err("the head never connected this stage".into()),
    }
    let outbound = open_hop(shared, &offer).await?;
    send(writer, &ToHead::Connected).await?;
    let inbound = match tokio::time::timeout(CONNECT_TIMEOUT, inbound.arrived()).await {
        Ok(Ok(stream)) => stream,
        _ => return Err("the hop from the previous stage never came".into()),
    };
    let ended = run(
        shared,
        worker,
        &guard.steps,
        inbound,
        outbound,
        inbox,
        writer,
    )
    .await;
    drop((guard, reservation));
    ended
}

/// Sets the memory of a stage aside, or says why not.
async fn reserve(shared: &Arc<Shared>, offer: &Offer) -> Result<Reservation, ToHead> {
    let refused = |reason: String, free_bytes: u64| ToHead::Refused {
        reason,
        free_bytes,
        needed_bytes: offer.needed_bytes,
    };
    if let Some(reason) = shared.unavailable() {
        return Err(refused(reason, 0));
    }
    let tail = offer.stage + 1 == offer.stages;
    if tail && offer.logits && offer.head != shared.peer && !shared.allow_logits {
        return Err(refused(
            "its owner does not let logits leave the machine (start its agent with --allow-logits)"
                .into(),
            shared.memory.free(),
        ));
    }
    let needed = prepare::footprint_of(shared, offer)
        .await
        .map_err(|error| refused(error, 0))?;
    shared
        .memory
        .reserve(needed)
        .map_err(|free| refused(format!("{free} bytes are free, {needed} are needed"), free))
}

/// Prepares the stage; a head that goes away or releases meanwhile ends it.
async fn prepare_while_listening(
    shared: &Arc<Shared>,
    offer: &Offer,
    inbox: &mut Inbox<ToStage>,
    writer: &mut (impl tokio::io::AsyncWrite + Unpin + Send),
) -> Result<Option<(Worker, StageReport)>, String> {
    let (progress, mut told) = mpsc::channel::<Progress>(64);
    let request = StageRequest::of(offer);
    let prepared = prepare::prepare(shared.clone(), request, progress);
    tokio::pin!(prepared);
    loop {
        tokio::select! {
            result = &mut prepared => return match result {
                Ok(ready) => Ok(Some(ready)),
                Err(reason) => {
                    let _ = wire::send(writer, kind::CONTROL, &ToHead::Failed { reason: reason.clone() }).await;
                    tracing::warn!("a stage could not be prepared: {reason}");
                    Ok(None)
                }
            },
            Some(step) = told.recv() => send(writer, &ToHead::Progress(step)).await?,
            message = inbox.recv() => match message {
                Some(ToStage::Ping) => {
                    send(writer, &ToHead::Pong { steps: 0, resident_bytes: 0 }).await?;
                }
                Some(ToStage::Release) | None => return Ok(None),
                Some(_) => return Err("the head spoke out of turn".into()),
            },
        }
    }
}

/// Opens the hop that this stage writes to.
async fn open_hop(shared: &Arc<Shared>, offer: &Offer) -> Result<BoxIo, String> {
    let hello = Hello {
        line: offer.line,
        epoch: offer.epoch,
        to: offer.stage + 1,
    };
    let failed = |error: String| format!("the next stage cannot be reached: {error}");
    if offer.next == shared.peer {
        return shared
            .hops
            .open_local(hello, &shared.peer)
            .map_err(|error| failed(error.to_string()));
    }
    let mut stream = shared
        .open_stream(&offer.next, super::messages::STEP_PROTOCOL)
        .await
        .map_err(failed)?;
    say_hello(&mut stream, hello)
        .await
        .map_err(|error| failed(error.to_string()))?;
    Ok(stream)
}

/// Relays frames until the line ends.
async fn run(
    shared: &Arc<Shared>,
    worker: Worker,
    steps: &Arc<AtomicU64>,
    inbound: BoxIo,
    outbound: BoxIo,
    inbox: &mut Inbox<ToStage>,
    writer: &mut (impl tokio::io::AsyncWrite + Unpin + Send),
) -> Result<(), String> {
    let Worker {
        input,
        output,
        mut process,
    } = worker;
    let (counted, taken) = (steps.clone(), Arc::new(AtomicU64::new(0)));
    let mut into_worker = tokio::spawn(async move { relay(inbound, input, &taken).await });
    let mut out_of_worker = tokio::spawn(async move { relay(output, outbound, &counted).await });
    let mut withdrawn = shared.withdrawn();
    let mut last_heard = tokio::time::Instant::now();

    let outcome = loop {
        tokio::select! {
            message = inbox.recv() => {
                last_heard = tokio::time::Instant::now();
                match message {
                    Some(ToStage::Ping) => {
                        let pong = ToHead::Pong {
                            steps: steps.load(Ordering::Relaxed),
                            resident_bytes: crate::platform::resident_bytes(process.pid).unwrap_or(0),
                        };
                        if let Err(error) = send(writer, &pong).await {
                            break Err(error);
                        }
                    }
                    Some(ToStage::Release) | None => break Ok(()),
                    Some(_) => break Err("the head spoke out of turn".to_owned()),
                }
            }
            reason = process.ended() => break Err(reason),
            _ = &mut into_worker => break Err("the hop from the previous stage closed".to_owned()),
            _ = &mut out_of_worker => {
                // The worker's end explains a closed pipe better than the pipe does.
                let reason = tokio::time::timeout(Duration::from_millis(500), process.ended()).await;
                break Err(reason.unwrap_or_else(|_| "the hop to the next stage closed".to_owned()));
            }
            () = tokio::time::sleep_until(last_heard + SILENCE) => {
                break Err(format!("the head was silent for {} s", SILENCE.as_secs()));
            }
            reason = withdrawn.changed() => break Err(reason),
        }
    };
    // Aborting the relay drops the pipe, which tells the worker to end.
    into_worker.abort();
    out_of_worker.abort();
    process.end().await;
    outcome
}

async fn send(
    writer: &mut (impl tokio::io::AsyncWrite + Unpin),
    message: &ToHead,
) -> Result<(), String> {
    wire::send(writer, kind::CONTROL, message)
        .await
        .map_err(|_| "the head is gone".to_owned())
}
