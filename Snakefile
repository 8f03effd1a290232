from kvatlas.pipeline.workflow import Workflow

Workflow.require_folder(workflow.basedir)

if not workflow.configfiles:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/cells.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/explorer.smk"
include: "workflow/rules/highlights.smk"


rule all:
    default_target: True
    input:
        FLOW.files(),


include: "workflow/rules/publish.smk"
include: "workflow/rules/atlas.smk"
