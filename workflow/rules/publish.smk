# A target without output: it always asks the Hub, and makes no commit where the repository has the same files.
rule publish:
    input:
        rules.all.input,
    log:
        f"logs/{RUN}/publish.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        folder=lambda wildcards: REPORT,
        configfile=lambda wildcards: workflow.configfiles[-1],
        repo_id=config.get("publish", {}).get("repo_id", ""),
        private="--private" if config.get("publish", {}).get("private") else "",
    shell:
        "kvatlas publish --configfile {params.configfile:q} --folder {params.folder:q} --repo-id={params.repo_id:q} {params.private} 2>&1 | tee {log}"
