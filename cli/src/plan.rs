//! `plan`: what would be read and how. Reads headers and indexes, and no data.

use std::io::Write;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::plan::PlanExplanation;
use tensora::text::{ByteSize, counted};
use tensora::{ScheduleExplanation, Selection, Slice, Split};

use crate::args::{Backend, Tuning};
use crate::model::Named;
use crate::{output, size};

/// Explain what would be read and how, without reading it.
#[derive(Debug, Args)]
pub struct Plan {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    backend: Backend,
    /// Only tensors whose names match; may be given several times
    #[arg(long, value_name = "GLOB")]
    select: Vec<String>,
    /// Only one rank's share of a dimension of the tensors with this name (or glob), such as
    /// '*.q_proj.weight:0:1/4'; may be given several times
    #[arg(long, value_name = "NAME:DIM:RANK/WORLD")]
    slice: Vec<Share>,
    /// Bytes that a stream may hold in flight and undelivered
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    budget: Option<u64>,
    #[command(flatten)]
    tuning: Tuning,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// One rank's share of one dimension.
#[derive(Debug, Clone, PartialEq)]
struct Share {
    target: String,
    slice: Slice,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let example = "model.norm.weight:0:1/4";
            format!("{text:?} is not NAME:DIM:RANK/WORLD; write it like {example}")
        };
        // From the right: names may hold colons.
        let (rest, share) = text.rsplit_once(':').ok_or_else(wrong)?;
        let (target, dim) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let (rank, world) = share.split_once('/').ok_or_else(wrong)?;
        let (rank, world): (u64, u64) = match (rank.parse(), world.parse()) {
            (Ok(rank), Ok(world)) => (rank, world),
            _ => return Err(wrong()),
        };
        if target.is_empty() {
            return Err(wrong());
        }
        if rank >= world {
            return Err(format!(
                "rank {rank} of {world} does not exist; ranks are numbered from 0"
            ));
        }
        Ok(Self {
            target: target.to_owned(),
            slice: Slice::Shard {
                dim: dim.parse().map_err(|_| wrong())?,
                rank,
                world,
                // The same as even where it divides.
                split: Split::Balanced,
            },
        })
    }
}

#[derive(Serialize)]
struct Report {
    plan: PlanExplanation,
    schedule: ScheduleExplanation,
}

pub fn run(args: &Plan, out: &mut dyn Write) -> Result<()> {
    let (_, checkpoint) = args.named.open()?;
    let mut settings = args.tuning.settings(args.backend.kind)?;
    settings.budget = args.budget;
    let loader = checkpoint
        .loader()
        .select(args.selection()?)
        .settings(settings);
    let plan = loader.plan()?.explain();
    let schedule = loader.schedule()?.explain();
    if args.json {
        return output::json_line(out, &Report { plan, schedule });
    }
    // What runs comes first: the schedule may read less than the plan's spans cover, or more.
    writeln!(
        out,
        "{} of {} for {} needed: {:.3} bytes read per byte needed",
        counted(schedule.requests, "request"),
        ByteSize(schedule.read_bytes),
        ByteSize(schedule.needed_bytes),
        schedule.over_read,
    )?;
    writeln!(out, "{plan}")?;
    writeln!(out, "{}", schedule.to_string().trim_end())?;
    Ok(())
}

impl Plan {
    fn selection(&self) -> Result<Selection> {
        let mut globs = self.select.iter().map(|glob| Selection::glob(glob));
        let mut selection = globs.next().unwrap_or_else(|| Ok(Selection::all()))?;
        for glob in globs {
            selection = selection.or(glob?);
        }
        for share in &self.slice {
            selection = selection.with_slice(&share.target, share.slice.clone())?;
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parsed_from_the_right() {
        let share: Share = "scope:a/b.weight:1:2/4".parse().unwrap();
        assert_eq!(share.target, "scope:a/b.weight");
        let slice = Slice::Shard {
            dim: 1,
            rank: 2,
            world: 4,
            split: Split::Balanced,
        };
        assert_eq!(share.slice, slice);
        for text in [
            "", "w", "w:0", "w:0:1", "w:x:0/1", "w:0:4/4", "w:0:0/0", ":0:0/1", "w:-1:0/1",
        ] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
