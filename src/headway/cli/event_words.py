"""What happened to a run, in a line for each event that people care about."""

from __future__ import annotations

from collections.abc import Sequence

from headway.cli.members import (
    Event,
    change_text,
    newest_launch,
    no_progress,
    readable_names,
    worker_label,
)
from headway.cli.output import compiled_text, short_loss


def event_lines(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Times and texts, in order."""
    lines, before, ranks = [], None, 1
    for event in events:
        if event["event"] == "launched":
            ranks = newest_launch([event]).ranks
        if text := event_text(event, before, ranks):
            lines.append((str(event["time"]), text))
        if event["event"] in ("started", "changed"):
            before = event["workers"]
    return lines


def event_text(event: Event, before: int | None, ranks: int) -> str:
    """`before`: number of workers before it; `ranks`: workers on each node. Empty: not shown."""
    match event["event"]:
        case "launched":
            return "launched"
        case "started":
            resumed = event["resumed_from"]
            begin = f"resumed from step {resumed}" if resumed is not None else "started"
            workers = event["workers"]
            return f"{begin}, {workers} worker{'s' if workers > 1 else ''} on {event['device']}"
        case "cannot_leave":
            return f"a worker that waits when a loss ends its group is restarted: {event['reason']}"
        case "compiled":
            return f"node {event['node']}: {compiled_text(event)}"
        case "evaluated":
            losses = [f"{name} {short_loss(loss)}" for name, loss in event["losses"].items()]
            return f"step {event['step']}: {'  '.join(losses) or 'samples'}"
        case "skipped":
            return f"step {event['step']} skipped: {event['reason']}"
        case "saved":
            return f"step {event['step']}: saved {event['checkpoint']}"
        case "save_failed":
            return f"step {event['step']} could not be saved: {event['reason']}"
        case "scaled":
            return f"scaled from {event['before']} to {event['nodes']} nodes"
        case "restarted":
            return f"{event['launcher']} restarted all, {event['workers']} workers now"
        case "lost":
            return f"{worker_label(event['node'], event['local_rank'], ranks)} {event['how']}"
        case "device_failed":
            worker = worker_label(event["node"], event["local_rank"], ranks)
            return f"{worker}: device {event['device_number']} has failed: {event['reason']}"
        case "left_out":
            return f"{event['machine']} gets no pods for {event['hours']:g} hours"
        case "replaced":
            return f"node {event['node']} was replaced after {event['seconds']:.0f} s"
        case "gave_back":
            had = f"had {event['held']} of the {event['needed']} nodes that it needs"
            again = f"gave its pods back, tries again at {event['retry_at'][11:19]}"
            return f"{event.get('shortage', had)}: {again}"
        case "tries_again":
            kind = f" with {event['accelerators']}" if "accelerators" in event else ""
            return f"tries again to have {event['needed']} nodes{kind}"
        case "large_files":
            what = ", ".join(event["names"])
            return (
                f"the script wrote {what} to its working folder, which on a cluster is lost with "
                "its pod: what it needs after a restart belongs in $HEADWAY_OUTPUT"
            )
        case "left_files":
            return (
                "files of the code that the script has changed in its working folder stay as they "
                f"are: {', '.join(event['names'])}; to have those of the code, delete them there"
            )
        case "below_minimum":
            return f"{event['nodes']} of at least {event['minimum']} nodes: training waits"
        case "left":
            return f"node {event['node']} has left"
        case "diverged":
            who = readable_names(", ".join(event["names"]), ranks)
            return f"step {event['step']}: the weights of {who} differ from the majority"
        case "coordinator_lost":
            return f"the coordinator was lost: {event['how']}"
        case "changed":
            return f"step {event['step']}: {change_text(event, before, ranks)}"
        case "stuck":
            return no_progress(event)
        case "stopped" if event.get("ended"):
            return f"stopped: the script {event['ended']}"
        case "finished" | "stopped" | "failed":
            return str(event["event"])
    return ""
