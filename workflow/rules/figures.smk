rule figure:
    input:
        results=f"{REPORT}/results.json",
        trials=f"{REPORT}/trials.parquet",
    output:
        f"{RESULTS}/figures/{{figure}}.json",
    log:
        f"logs/{RUN}/figure/{{figure}}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1000,
    params:
        code=FLOW.figure_code,
    shell:
        "kvatlas figure --name {wildcards.figure} --results {input.results} --trials {input.trials} --code {params.code} --output {output} > {log} 2>&1"
