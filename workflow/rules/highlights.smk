# What a run with `highlights: true` puts into the README of the repository, which is no output: Snakemake would delete it.
rule highlights:
    input:
        results=f"{REPORT}/results.json",
        config=f"{REPORT}/config.json",
    output:
        f"{RESULTS}/highlights.md",
    log:
        f"logs/{RUN}/highlights.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1000,
    params:
        code=FLOW.step_code("highlights"),
    shell:
        "kvatlas job highlights --code {params.code} --results {input.results} --output {output} > {log} 2>&1"
