# A target without output: it reads all reports that are finished, also those of other runs.
rule atlas:
    input:
        rules.all.input,
    log:
        f"logs/{RUN}/atlas.log",
    localrule: True
    conda:
        "../../environment.yml"
    shell:
        "kvatlas atlas 2>&1 | tee {log}"
