//! `plan`: what would be read and how. Reads headers and indexes, and no data.

use std::collections::HashSet;
use std::io::Write;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::plan::PlanExplanation;
use tensora::plan::Steps;
use tensora::text::{ByteSize, counted};
use tensora::{Checkpoint, Error, ErrorKind, Loader, ScheduleExplanation, Selection, Slice, Split};

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
    /// Only a part of a dimension of the tensors with this name (or glob): RANK/WORLD, the share of
    /// one rank, as '*.q_proj.weight:0:1/4', or START:STOP:STEP, rows as Python slices them but
    /// counted from 0 up, as 'embed.weight:0:10:200:3' or '*.weight:1:::2'; may be given several
    /// times
    #[arg(long, value_name = "NAME:DIM:PART")]
    slice: Vec<Part>,
    /// Bytes that a stream may hold in flight and undelivered
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    budget: Option<u64>,
    #[command(flatten)]
    tuning: Tuning,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// A part of one dimension.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    target: String,
    dim: usize,
    rows: Rows,
}

/// What is taken of a dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rows {
    /// One rank's share.
    Share { rank: u64, world: u64 },
    /// Every `step`-th from `start`, before `stop` and before the end.
    Steps {
        start: u64,
        stop: Option<u64>,
        step: u64,
    },
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let examples = "model.norm.weight:0:1/4 or model.norm.weight:0:10:200:3";
            format!(
                "{text:?} is neither NAME:DIM:RANK/WORLD nor NAME:DIM:START:STOP:STEP; write it like {examples}"
            )
        };
        // From the right: names may hold colons.
        let mut words = text.rsplitn(5, ':');
        let mut next = || words.next().ok_or_else(wrong);
        let last = next()?;
        let rows = if let Some((rank, world)) = last.split_once('/') {
            let (Ok(rank), Ok(world)) = (rank.parse::<u64>(), world.parse::<u64>()) else {
                return Err(wrong());
            };
            if rank >= world {
                return Err(format!(
                    "rank {rank} of {world} does not exist; ranks are numbered from 0"
                ));
            }
            Rows::Share { rank, world }
        } else {
            let number = |word: &str| match word {
                "" => Ok(None),
                word => word.parse().map(Some).map_err(|_| wrong()),
            };
            let (stop, start) = (number(next()?)?, number(next()?)?);
            let step = number(last)?.unwrap_or(1);
            if step == 0 {
                return Err("steps of 0 lead nowhere; they are at least 1".to_owned());
            }
            let start = start.unwrap_or(0);
            Rows::Steps { start, stop, step }
        };
        let dim: usize = next()?.parse().map_err(|_| wrong())?;
        // What is left may hold colons.
        let target = words
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<Vec<_>>();
        let target = target.join(":");
        if target.is_empty() {
            return Err(wrong());
        }
        Ok(Self { target, dim, rows })
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
        .select(args.selection(&checkpoint)?)
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
    fn selection(&self, checkpoint: &Checkpoint) -> Result<Selection> {
        let mut globs = self.select.iter().map(|glob| Selection::glob(glob));
        let mut selection = globs.next().unwrap_or_else(|| Ok(Selection::all()))?;
        for glob in globs {
            selection = selection.or(glob?);
        }
        let selected = selection.clone();
        for part in &self.slice {
            selection = match part.rows {
                Rows::Share { rank, world } => {
                    let slice = Slice::Shard {
                        dim: part.dim,
                        rank,
                        world,
                        // The same as even where it divides.
                        split: Split::Balanced,
                    };
                    selection.with_slice(&part.target, slice)?
                }
                Rows::Steps { .. } => part.with_steps(selection, &selected, checkpoint)?,
            };
        }
        Ok(selection)
    }
}

impl Part {
    /// Adds the steps of each tensor that is meant: steps count up to the end of a dimension, which
    /// tensors of one pattern need not have in common.
    fn with_steps(
        &self,
        mut selection: Selection,
        selected: &Selection,
        checkpoint: &Checkpoint,
    ) -> Result<Selection> {
        if checkpoint.tensor(&self.target).is_some() {
            let slice = self.steps_of(&self.target, checkpoint)?;
            return Ok(selection.with_slice(&self.target, slice)?);
        }
        // Which tensors a pattern selects is for the planner to say.
        let names = |selection: Selection| -> Result<Vec<Box<str>>> {
            let plan = Loader::plan(&checkpoint.loader().select(selection))?;
            Ok(plan.tensors.into_iter().map(|tensor| tensor.name).collect())
        };
        let wanted: HashSet<Box<str>> = names(selected.clone())?.into_iter().collect();
        let mut matched = names(Selection::glob(&self.target)?).unwrap_or_default();
        matched.retain(|name| wanted.contains(name));
        if matched.is_empty() {
            // The planner has the words for what a slice does not find.
            return Ok(selection.with_slice(&self.target, Slice::Steps(Vec::new()))?);
        }
        for name in matched {
            selection = selection.with_slice(&name, self.steps_of(&name, checkpoint)?)?;
        }
        Ok(selection)
    }

    fn steps_of(&self, name: &str, checkpoint: &Checkpoint) -> Result<Slice> {
        let Rows::Steps { start, stop, step } = self.rows else {
            unreachable!("shares are slices already")
        };
        let shape = &checkpoint.require(name)?.shape;
        let mut steps = vec![None; shape.len()];
        let Some((place, &len)) = steps.get_mut(self.dim).zip(shape.get(self.dim)) else {
            let message = format!(
                "there is no dimension {} to slice: the tensor has {} (shape {shape:?})",
                self.dim,
                shape.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message)
                .tensor(name)
                .into());
        };
        let stop = stop.unwrap_or(len).min(len);
        let count = stop.saturating_sub(start).div_ceil(step);
        *place = Some(Steps { start, count, step });
        Ok(Slice::Steps(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_parsed_from_the_right() {
        let share = Rows::Share { rank: 2, world: 4 };
        let steps = |start, stop, step| Rows::Steps { start, stop, step };
        for (text, target, dim, rows) in [
            ("scope:a/b.weight:1:2/4", "scope:a/b.weight", 1, share),
            ("a:b:c:d:e:f:0:2/4", "a:b:c:d:e:f", 0, share),
            ("w:0:10:200:3", "w", 0, steps(10, Some(200), 3)),
            ("1:2:3:4:5:6:7", "1:2:3", 4, steps(5, Some(6), 7)),
            ("*.w[0]:2:::2", "*.w[0]", 2, steps(0, None, 2)),
            ("w:0:5::", "w", 0, steps(5, None, 1)),
        ] {
            let part: Part = text.parse().unwrap();
            assert_eq!((&*part.target, part.dim, part.rows), (target, dim, rows));
        }
        for text in [
            "",
            "w",
            "w:0",
            "w:0:1",
            "w:x:0/1",
            "w:0:4/4",
            "w:0:0/0",
            ":0:0/1",
            "w:-1:0/1",
            "w:0:1:2",
            ":0:1:2:3",
            "w:x:1:2:3",
            "w:0:1:2:0",
            "w:0:-1:2:1",
            "w:0:a:2:1",
        ] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
    }
}
