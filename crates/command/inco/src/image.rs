//! `inco image`: images of network functions.

use display::output::{self, WrongUsage};
use display::table::{Table, span_ms};
use engine::image::Image;
use engine::{EngineError, ImageRef};
use images::{build_function, deliver, import_testpmd, in_store, remarks, store};

use crate::cli::{ImageArgs, ImageBuildArgs, ImageCommand, ImageImportArgs, ImageListArgs};

pub(crate) fn run(args: &ImageArgs) -> anyhow::Result<()> {
    match &args.command {
        ImageCommand::Build(args) => build(args),
        ImageCommand::Import(args) => import(args),
        ImageCommand::List(args) => list(args),
        ImageCommand::Remove(args) => {
            let name = ImageRef::from(args.name.as_str());
            store().remove(&name)?;
            output::line(format!("removed {}", name.with_tag()))
        }
    }
}

fn build(args: &ImageBuildArgs) -> anyhow::Result<()> {
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| format!("inco/{}", args.function));
    let image = build_function(&args.function, &ImageRef::from(name.as_str()))?;
    deliver(args.to.engine, &args.to.host, &image)?;
    print(&image, args.json)
}

fn import(args: &ImageImportArgs) -> anyhow::Result<()> {
    let name = ImageRef::from(args.name.as_str());
    let image = match &args.source {
        Some(source) => {
            let imported = store()
                .import(&name, source, &args.command, &args.env)
                .map_err(|error| match error {
                    EngineError::NoProgram => {
                        let source = source.display();
                        let example = format!("inco image import {} {source} -- /path/to/program", args.name);
                        WrongUsage(format!("{error}; write for example\n  {example}")).into()
                    }
                    // The problem is not in the store.
                    EngineError::BadImage { .. } => error.into(),
                    _ => in_store(error.into()),
                })?;
            for remark in remarks(&imported.left_out) {
                output::complain(&remark);
            }
            imported.image
        }
        None if args.name.trim_end_matches(":latest") == "testpmd" => import_testpmd(&name, &args.command)?,
        None => {
            let write = "name a tar archive or a directory";
            return Err(WrongUsage(format!(
                "the source of the image {} is missing; {write}",
                args.name
            ))
            .into());
        }
    };
    deliver(args.to.engine, &args.to.host, &image)?;
    print(&image, args.json)
}

fn print(image: &Image, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(image, true);
    }
    output::line(format!(
        "{}: {}, runs {}",
        image.name,
        configuration::show_size(image.bytes),
        image.command(&[]).join(" ")
    ))
}

fn list(args: &ImageListArgs) -> anyhow::Result<()> {
    let images = store().list()?;
    if args.json {
        return output::json(&images, true);
    }
    let now_ms = clock::unix_ms();
    let mut table = Table::new(&["image", ">size", ">age", "runs"]);
    for image in &images {
        table.row([
            image.name.clone(),
            configuration::show_size(image.bytes),
            span_ms(now_ms.saturating_sub(image.created_unix_ms)),
            image.command(&[]).join(" "),
        ]);
    }
    let mut text = table.text();
    if images.is_empty() {
        text.push_str("(none: make one with `inco image build forward`)\n");
    }
    output::text(&text)
}
