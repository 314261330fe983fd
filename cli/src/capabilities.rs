use clap::Args;
#[derive(Debug, Args)]
pub struct Capabilities {}
pub fn run(_: &Capabilities, _: &mut dyn std::io::Write) -> anyhow::Result<()> {
    Ok(())
}
