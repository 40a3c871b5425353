use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, InboundSink};
use futures_util::future::join_all;

/// How many events of one post are journaled at the same time. Up to 30, `join_all` first polls its futures in their order.
const TOGETHER: usize = 30;

/// Hands the events of one post over: in their order, but not one by one, so that a journal can commit them together. An
/// event that can never be taken over is logged and skipped, so that it does not hold up the others.
///
/// # Errors
/// At least one event was not taken over: answer so that the channel posts them again.
///
/// # Cancel safety
/// Any of the events may have been taken over; handing them over again is always safe.
pub async fn admit_all(sink: &dyn InboundSink, events: Vec<Inbound>) -> Result<(), AdmitError> {
    let mut events = events.into_iter();
    loop {
        let calls: Vec<_> = events.by_ref().take(TOGETHER).map(|event| admit(sink, event)).collect();
        if calls.is_empty() {
            return Ok(());
        }
        join_all(calls).await.into_iter().collect::<Result<(), _>>()?;
    }
}

async fn admit(sink: &dyn InboundSink, inbound: Inbound) -> Result<(), AdmitError> {
    let event = inbound.event.clone();
    match sink.admit(inbound).await {
        Ok(admitted) => {
            tracing::trace!(%event, record = %admitted.record, duplicate = admitted.duplicate, "admitted");
            Ok(())
        }
        Err(AdmitError::Invalid(problem)) => {
            tracing::error!(%event, problem, "an event cannot be taken over and is dropped");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
