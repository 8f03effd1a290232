rule explorer:
    input:
        f"{REPORT}/results.json",
        f"{REPORT}/config.json",
        f"{REPORT}/trials.parquet",
    output:
        report(
            f"{REPORT}/explorer.html",
            caption="../report/explorer.rst",
            category="Pages",
            labels={"Page": "Explorer"},
        ),
    log:
        f"logs/{RUN}/explorer.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1000,
    params:
        code=FLOW.step_code("explorer"),
    shell:
        "kvatlas job explorer --code {params.code} --output {output} > {log} 2>&1"
